"""Adds annotations to the answer of a query, each to the group of its series.

docs/spec/opentsdb.md §8.3; core/SpanGroup.getAnnotations and
tsd/HttpJsonSerializer.formatQueryAsyncV1 of OpenTSDB 2.4.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from timebeam.schema.annotations.record import Annotation
from timebeam.schema.points import Series
from timebeam.schema.query.answer import Result, common_tags, group_key


@dataclasses.dataclass(frozen=True, slots=True)
class QueryAnnotations:
    """The annotations for a query.

    Attributes:
      of_series: by series that passed the filters of the query.
      of_all: global annotations.
    """

    of_series: Mapping[Series, Sequence[Annotation]]
    of_all: Sequence[Annotation] = ()


def annotated(
    results: Sequence[Result],
    annotations: QueryAnnotations,
    metric: str,
    group_by: Sequence[str],
    aggregator: str,
) -> list[Result]:
    """The results with their annotations; also a result for each group with annotations and no points.

    Args:
      results: the answer for `group_by` and `aggregator`; see `timebeam.schema.query.answer.answer`.
    """
    groups: dict[tuple[str, ...], list[Series]] = {}
    for series in annotations.of_series:
        key = group_key(series, group_by, aggregator)
        if key is not None:
            groups.setdefault(key, []).append(series)
    of_all = by_start(annotations.of_all)
    complete = []
    for result in results:
        tags = Series.of(metric, result.tags)
        key = group_key(tags, group_by, aggregator)
        notes = by_start(
            note for series in groups.pop(key or (), ()) for note in annotations.of_series[series]
        )
        complete.append(dataclasses.replace(result, annotations=notes, global_annotations=of_all))
    none = np.zeros(0, np.int64)
    for _, members in sorted(groups.items()):
        notes = by_start(note for series in members for note in annotations.of_series[series])
        complete.append(
            Result(metric, *common_tags(members), none, none, annotations=notes, global_annotations=of_all)
        )
    return complete


def by_start(notes: Iterable[Annotation]) -> list[Annotation]:
    """Annotations sorted by start, then by series."""
    return sorted(notes, key=lambda note: (note.start_ms, note.tsuid))


def all_of(results: Iterable[Result]) -> list[Annotation]:
    """All annotations of an answer without duplicates, sorted by start."""
    return by_start(
        {note for result in results for note in (*result.annotations, *result.global_annotations)}
    )
