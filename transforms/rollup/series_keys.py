"""The names and keys under which rollups of series and groups are stored."""

from __future__ import annotations

from collections.abc import Sequence

from timebeam.schema.layouts import SeriesKey
from timebeam.schema.points import RefusedError, Rejected, Series, Stage
from timebeam.schema.rollup.buckets import Buckets, Grouping
from timebeam.transforms.ingest.series_keys import SeriesKeys
from timebeam.transforms.rollup.job import RollupJob


class RollupSeriesKeys:
    """The keys of the series of a chunk, and of their groups, each made once."""

    def __init__(self, job: RollupJob, keys: SeriesKeys) -> None:
        self._job, self._keys = job, keys
        self._group_tag_keys = frozenset(
            key for pre_aggregate in job.config.pre_aggregates for key in pre_aggregate.keep
        )
        self._groups: dict[tuple[object, ...], list[tuple[Series, tuple[str, ...]]]] = {}
        self._single: dict[Series, SeriesKey | None] = {}
        self._grouped: Sequence[Series] = ()
        self._groupings: list[Grouping] = []
        self._aggregators: dict[Series, tuple[str, ...]] = {}  # by group

    def single(self, buckets: Buckets) -> tuple[list[SeriesKey | None], list[Rejected]]:
        """(the key of each series, None if it has none; refusals of new series)."""
        config = self._job.config
        rejected = []
        named: dict[Series, Series] = {}
        for series in buckets.series:
            if series in self._single:
                continue
            self._single[series] = None
            try:
                named[series] = config.rollup_series(series)
            except RefusedError as error:
                rejected.append(_unnamed(str(series), error))
        for series, key in zip(named, self._keys.series_keys(list(named.values())), strict=True):
            if isinstance(key, RefusedError):
                rejected.append(_unnamed(str(series), key))
            else:
                self._single[series] = key
        return [self._single[series] for series in buckets.series], rejected

    def groupings(self, series: Sequence[Series]) -> list[Grouping]:
        """The groups of the series; a series is in at most one group of each grouping."""
        if series != self._grouped:
            listed = [self._groups_of(member) for member in series]
            self._groupings = []
            for depth in range(max(map(len, listed), default=0)):
                layer = [groups[depth] if depth < len(groups) else (None, ()) for groups in listed]
                self._aggregators |= {group: names for group, names in layer if group is not None}
                self._groupings.append(Grouping.of([group for group, _ in layer]))
            self._grouped = series
        return self._groupings

    def _groups_of(self, series: Series) -> list[tuple[Series, tuple[str, ...]]]:
        """The groups of a series, sorted; they depend on its metric and the tags that groups keep."""
        group_tags = (series.metric, *[tag for tag in series.tags if tag[0] in self._group_tag_keys])
        groups = self._groups.get(group_tags)
        if groups is None:
            groups = self._groups[group_tags] = sorted(self._job.config.groups(series).items())
        return groups

    def aggregators(self, groups: Sequence[Series]) -> list[str]:
        """All aggregators of some groups."""
        return sorted({name for group in groups for name in self._aggregators[group]})

    def of_groups(
        self, groups: Sequence[Series], aggregator: str
    ) -> tuple[list[SeriesKey | None], list[Rejected]]:
        """(the key of each group that has an aggregator, None of others; refusals)."""
        named = {
            group: self._job.config.group_series(group, aggregator)
            for group in groups
            if aggregator in self._aggregators[group]
        }
        key_by_group = dict(zip(named, self._keys.series_keys(list(named.values())), strict=True))
        refused = [
            _unnamed(str(named[group]), key)
            for group, key in key_by_group.items()
            if isinstance(key, RefusedError)
        ]
        keys = [key_by_group.get(group) for group in groups]
        return [None if isinstance(key, RefusedError) else key for key in keys], refused


def _unnamed(series: str, error: RefusedError) -> Rejected:
    return Rejected(series.encode(), error.reason, error.message, Stage.ASSIGN)
