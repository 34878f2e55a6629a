"""OpenTSDB's meta data in Bigtable: written by an ingest, made anew from the data, and removed."""
