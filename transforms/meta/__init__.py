"""OpenTSDB's meta data in Bigtable: written by an ingest, rebuilt from the data, and removed."""
