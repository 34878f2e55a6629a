"""OpenTSDB's trees: definitions, rules, placement of series, and the bytes of the table `tsdb-tree`.

Specification: docs/spec/opentsdb.md §6 (docs/how-to/trees.md in short).
"""
