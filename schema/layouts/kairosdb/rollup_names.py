"""Rollups in KairosDB's layout: series of the metric `{metric}.{interval}.{aggregator}`.

The tag `saved_from` names the original metric, as in KairosDB's own roll-up tasks
(docs/spec/kairosdb.md §10). Unlike there, all tags are kept.
"""

from __future__ import annotations

from timebeam.schema.points import Reason, RefusedError, Series

SAVED_FROM = "saved_from"


class KairosDbRollupNames:
    """See `RollupNames`."""

    integers = True

    def stored(self, series: Series, interval: str, aggregator: str) -> Series:
        """See `RollupNames.stored`."""
        tags = dict(series.tags)
        if SAVED_FROM in tags:
            why = f"tag {SAVED_FROM}={tags[SAVED_FROM]}: rollups need this tag key"
            raise RefusedError(Reason.SERIES_NOT_STORABLE, why)
        tags[SAVED_FROM] = series.metric
        return Series.of(f"{series.metric}.{interval}.{aggregator}", tags)

    def source(self, stored: Series, interval: str) -> tuple[Series, str] | None:
        """See `RollupNames.source`."""
        tags = dict(stored.tags)
        metric = tags.pop(SAVED_FROM, None)
        head = f"{metric}.{interval}."
        if metric is None or not stored.metric.startswith(head):
            return None
        return Series.of(metric, tags), stored.metric[len(head) :]
