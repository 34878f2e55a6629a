"""Rollups in Heroic's layout: the series with two more tags, `rollup` and `stat`.

Heroic itself stores no rollups. As tags, its queries can filter by both.
"""

from __future__ import annotations

from timebeam.schema.points import Reason, RefusedError, Series

ROLLUP, STAT = "rollup", "stat"


class HeroicRollupNames:
    """See `RollupNames`; Heroic stores only doubles."""

    integers = False

    def stored(self, series: Series, interval: str, aggregator: str) -> Series:
        """See `RollupNames.stored`."""
        tags = dict(series.tags)
        for key in (ROLLUP, STAT):
            if key in tags:
                raise RefusedError(
                    Reason.SERIES_NOT_STORABLE, f"tag {key}={tags[key]}: rollups need this tag key"
                )
        return series._replace(tags=tuple(sorted({**tags, ROLLUP: interval, STAT: aggregator}.items())))

    def source(self, stored: Series, interval: str) -> tuple[Series, str] | None:
        """See `RollupNames.source`."""
        tags = dict(stored.tags)
        if tags.pop(ROLLUP, None) != interval or STAT not in tags:
            return None
        aggregator = tags.pop(STAT)
        return stored._replace(tags=tuple(sorted(tags.items()))), aggregator
