"""The archive of layout `opentsdb`: closed hours in long rows of compressed columns.

Format: docs/spec/archive.md. `keys` holds the row keys, `columns` the compressed columns, `parts` the
cells, `rows` the rows.
"""
