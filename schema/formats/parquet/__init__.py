"""Points in Parquet files: what `timebeam export` writes, and the format `parquet` that reads it."""
