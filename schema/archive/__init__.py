"""The archive of a store: closed hours in long rows of compressed columns (docs/spec/archive.md).

`archive_cell` holds the cells, `archive_rows` the rows and their keys, `view` what a store reads of them.
"""
