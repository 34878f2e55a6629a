"""OpenTSDB's meta data: what a TSD knows of series and of UIDs beside their points.

Format: docs/spec/opentsdb.md §5.3 and §5.4.
"""
