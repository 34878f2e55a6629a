"""OpenTSDB's annotations: records, cells and edits of notes to a series, or to everything.

Section 4.1 of the format notes; meta/Annotation and tsd/AnnotationRpc of OpenTSDB 2.4.1. docs/annotations.md.
"""
