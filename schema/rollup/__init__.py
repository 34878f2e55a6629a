"""Rollups and pre-aggregates of OpenTSDB 2.4: configuration, accumulators, cells, and what a day touches.

Specification: section 7 of the OpenTSDB format notes; docs/rollups.md in short. No Beam here.
"""
