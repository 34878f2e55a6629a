"""What only OpenTSDB has, in its tables: assigned UIDs, names, metadata, trees, annotations."""
