"""OpenTSDB's trees in Bigtable: definitions, series, branches and leaves."""
