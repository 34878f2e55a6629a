"""/api/v1/read: points for Prometheus."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.searches import metric_names
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.question import NONE, Question
from timebeam.schema.stores import UnknownNameError
from timebeam.schema.stores.opentsdb.http.query_answer import OBJECT_POINTS, POINT_BYTES
from timebeam.schema.stores.opentsdb.http.remote_read_messages import (
    LabelledPoints,
    ReadQuery,
    read_request,
    read_response,
)
from timebeam.schema.stores.opentsdb.http.request import ApiError, Request
from timebeam.transforms.query.evaluate import evaluate

_SHOWN = 3
"""Problems that an error lists."""


def remote_read(api: Api, request: Request) -> bytes:
    """The answer to /api/v1/read; an unknown metric or tag has no series.

    Raises:
      ApiError: the request is wrong, or not everything that it asks for could be read. Prometheus does not
        look at headers, so it would take the rest for everything.
    """
    now_ms = int(time.time() * 1000)
    queries = read_request(request.body, api.ignored_labels)
    results = [list(_series(api, query, now_ms)) for query in queries]
    if api.skipped:
        count = f"{len(api.skipped):,} problem{'s' * (len(api.skipped) > 1)}"
        raise ApiError(
            f"the answer would be incomplete, {count}: {'; '.join(api.skipped[:_SHOWN])}; repair damage "
            "(`timebeam check`), or leave out these series by matchers",
            500,
        )
    return read_response(results)


def _series(api: Api, query: ReadQuery, now_ms: int) -> Iterator[LabelledPoints]:
    """The series of a query that have points."""
    if query.end_ms < query.start_ms:
        return
    try:
        downsampling = None if query.rollup is None else Downsampling.parse(query.rollup)
    except ValueError as error:
        raise ApiError(f"Label __rollup__: {error}") from error
    rollups = None if downsampling is None else api.rollups
    seen: set[tuple[tuple[str, str], ...]] = set()
    for metric in query.metrics or filter(query.passes_name, metric_names(api)):
        question = Question(
            metric, query.tags, (), NONE, downsampling, query.start_ms, query.end_ms, matches=query.passes
        )
        try:
            evaluated = api.with_names(
                functools.partial(evaluate, api.target, api.layout, question, rollups, now_ms, api.meter)
            )
        except UnknownNameError:
            continue
        except ValueError as error:
            raise ApiError(str(error)) from error
        api.skipped.extend(evaluated.damage)
        for result in evaluated.results:
            labels = query.labels(result.members[0])
            if labels is None or not len(result.times_ms):
                continue
            if (*labels.items(),) in seen:
                api.skipped.append(f"{result.members[0]}: another series has its labels in Prometheus")
                continue
            seen.add((*labels.items(),))
            size = sum(len(name) + len(value) for name, value in labels.items())
            api.add_shown(len(result.times_ms) + OBJECT_POINTS + size // POINT_BYTES)
            yield LabelledPoints(labels, result.times_ms, result.values)
