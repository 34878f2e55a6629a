"""OpenTSDB's trees: definitions, rules, where they place a series, and the bytes of the table `tsdb-tree`.

Specification: section 6 of the format notes (docs/trees.md in short). No Beam, no network.
"""
