"""OpenTSDB's metadata of series and UIDs.

Format: docs/spec/opentsdb.md §5.3 and §5.4.
"""
