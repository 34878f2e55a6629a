"""OpenTSDB's metadata in Bigtable: written by an ingest, rebuilt from the data, and removed."""
