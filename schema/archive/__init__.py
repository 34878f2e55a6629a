"""The archive of a store: closed hours in long rows of compressed columns (docs/spec/archive.md).

`keys` holds the row keys, `pcodec_columns` the compressed columns, `archive_cell` the cells, `archive_rows`
the rows, `view` what a store reads of them.
"""
