"""Every counter of the pipelines, by name; docs/metrics.md explains them.

| counter | counts |
|---|---|
| points_read | points met in the input: those parsed, and the records refused before |
| points_duplicate | points left out since a later one of the same block has the same instant |
| points_packed | points handed on to be grouped, packed and written |
| rows_written, cells_written | row mutations and cells handed to the writer |
| bytes_written | bytes of those cells as Bigtable stores them, before compression |
| uid_hits, uid_misses, uids_assigned | names found in the worker's cache, looked up, newly given a UID |
| blocks_read, bytes_read | blocks of files and their bytes, decompressed |
| refused/REASON | records refused, by `schema.points.Reason` |

Each worker process also adds them up in `totals`, from which local runs show their progress.
"""

from __future__ import annotations

import collections

from apache_beam.metrics.metric import Metrics

NAMESPACE = "timebeam"

totals: collections.Counter[str] = collections.Counter()


def count(name: str, by: int = 1) -> None:
    """Adds to a counter."""
    Metrics.counter(NAMESPACE, name).inc(by)
    totals[name] += by
