"""OpenTSDB's annotations: records, cells and edits of notes to a series, or to everything.

docs/spec/opentsdb.md §4.1; meta/Annotation and tsd/AnnotationRpc of OpenTSDB 2.4.1.
docs/how-to/annotations.md.
"""
