"""Tables that users declare in TOML: a declaration, records in columns, and the rows between them.

Specification: the Bigtable patterns, sections 5 to 7; docs/tables.md says how to declare.
"""
