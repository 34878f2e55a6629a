"""Rollups and pre-aggregates of OpenTSDB 2.4: configuration, accumulators, cells and plans.

Specification: docs/spec/opentsdb.md §7; docs/use/rollups.md in short.
"""
