"""OpenTSDB's trees: definitions, rules, where they place a series, and the bytes of the table `tsdb-tree`.

Specification: docs/spec/opentsdb.md §6 (docs/how-to/trees.md in short). No Beam, no network.
"""
