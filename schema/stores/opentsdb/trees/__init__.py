"""OpenTSDB's trees: definitions, rules, placement of series, and the bytes of the table `tsdb-tree`.

Specification: docs/spec/opentsdb.md §6 (docs/use/names.md in short).
"""
