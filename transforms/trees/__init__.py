"""OpenTSDB's trees in Bigtable: definitions stored, series found, branches and leaves kept up."""
