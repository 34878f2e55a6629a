"""Tables that users declare in TOML: a declaration, records in columns, and the rows between them.

Specification: docs/spec/bigtable-patterns.md §5 to §7; docs/reference/tables.md says how to declare.
"""
