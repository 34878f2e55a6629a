"""OpenTSDB's annotations: notes to one series or to all, as records, stored JSON and edits.

docs/spec/opentsdb.md §4.1; meta/Annotation and tsd/AnnotationRpc of OpenTSDB 2.4.1.
docs/how-to/annotations.md.
"""
