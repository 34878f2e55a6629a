"""/api/query: reads what a checked query asks for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from timebeam.pipelines.serve.api import Api
from timebeam.schema.annotations import Annotation
from timebeam.schema.api.gexp import MOST_ARGUMENTS, parse_expression
from timebeam.schema.api.gexp_functions import Indexed
from timebeam.schema.api.query_answer import Answered, answer_body, shown_globally
from timebeam.schema.api.request import ApiError, Request
from timebeam.schema.api.ts_query import SubQuery, TsQuery, checked, json_query
from timebeam.schema.api.uri_query import metric_sub_query, uri_query
from timebeam.schema.layouts import (
    Annotations,
    Name,
    Selection,
    UidTables,
    UnknownNameError,
    find_capability,
)
from timebeam.schema.layouts.opentsdb.select import look_up
from timebeam.schema.points import Series
from timebeam.schema.query.question import Question
from timebeam.transforms.query.attached import find_annotations
from timebeam.transforms.query.evaluate import evaluate, series_of_tsuids

_METHODS = ("GET", "POST")

ROLLUP_RAW = "ROLLUP_RAW"
"""What `rollupUsage` says to read points alone."""


def query(api: Api, request: Request) -> Any:
    """The answer to /api/query.

    Raises:
      ApiError: the request is wrong, or names what is not there.
    """
    check_method(request, _METHODS)
    now_ms = int(time.time() * 1000)
    raw = json_query(request) if request.method == "POST" else uri_query(request)
    asked = checked(raw, now_ms)
    answers = [answered(api, asked, index, now_ms) for index in range(len(asked.queries))]
    return answer_body(
        asked,
        answers,
        global_annotations(api, asked),
        arrays=request.has("arrays"),
        leaves_out_nan=request.leaves_out_nan,
        add_shown=api.add_shown,
    )


def expressions(api: Api, request: Request) -> Any:
    """The answer to /api/query/gexp: the results of functions of queries.

    Raises:
      ApiError: see `query`; or an expression is wrong.
    """
    check_method(request, ("GET",))
    now_ms = int(time.time() * 1000)
    parsed = [parse_expression(text) for text in request.parameters.get("exp", ())]
    texts = [text for expression in parsed for text in expression.queries()]
    if len(texts) > MOST_ARGUMENTS:
        raise ApiError(
            f"The expressions have {len(texts):,} queries as arguments; at most {MOST_ARGUMENTS} are "
            "allowed. Send several requests",
            413,
        )
    asked = checked(uri_query(request, texts), now_ms)
    answers = [answered(api, asked, index, now_ms) for index in range(len(asked.queries))]
    index_of = {sub_query.raw: index for index, sub_query in enumerate(asked.queries)}
    results_of = {
        text: [
            Indexed(index, result, answers[index].first_tsuid(result)) for result in answers[index].results
        ]
        for text in dict.fromkeys(texts)
        for index in (index_of[metric_sub_query(text)],)
    }
    evaluated = [item for expression in parsed for item in expression.evaluate(results_of, api.add_points)]
    return answer_body(
        asked,
        [
            dataclasses.replace(answers[item.index], results=[item.result], lists_annotations=item.is_joined)
            for item in evaluated
        ],
        global_annotations(api, asked),
        arrays=request.has("arrays"),
        leaves_out_nan=request.leaves_out_nan,
        add_shown=api.add_shown,
    )


def check_method(request: Request, methods: Sequence[str]) -> None:
    """Raises ApiError if an endpoint does not take the method of a request."""
    if request.method not in methods:
        details = f"The HTTP method [{request.method}] is not permitted for this endpoint"
        raise ApiError("Method not allowed", 405, details)


def answered(api: Api, asked: TsQuery, index: int, now_ms: int) -> Answered:
    """The answer to one sub query.

    Raises:
      ApiError: a name is in no table, or a fill is too large.
    """
    sub_query = asked.queries[index]
    if sub_query.raw.percentiles or sub_query.raw.has_buckets:
        raise ApiError("Histograms are not served; `timebeam query --percentiles` reads them")
    rollups = None if (sub_query.raw.rollup_usage or "").upper() == ROLLUP_RAW else api.rollups
    try:
        question = _question(api, asked, sub_query)
        evaluated = evaluate(api.target, api.layout, question, rollups, now_ms, api.meter)
        api.skipped.extend(evaluated.damage)
    except UnknownNameError as error:
        raise ApiError(error.args[0], details=error.args[0]) from error
    except ValueError as error:
        raise ApiError(str(error)) from error
    return Answered(
        index,
        evaluated.results,
        {} if asked.raw.no_annotations else _annotations(api, question),
        evaluated.tsuids,
        _key_uids(api, question) if asked.raw.show_query else {},
    )


def global_annotations(api: Api, asked: TsQuery) -> list[Annotation]:
    """The global annotations that a query asks for."""
    layout = find_capability(api.layout, Annotations)
    if layout is None or asked.raw.no_annotations or not asked.raw.global_annotations:
        return []
    selection = Selection(None, {}, asked.start_ms, asked.end_ms)
    found, damage = find_annotations(
        api.target, layout, selection, of_series=False, of_all=True, meter=api.meter
    )
    api.skipped.extend(damage)
    return shown_globally(found.of_all, asked)


def _question(api: Api, asked: TsQuery, sub_query: SubQuery) -> Question:
    """The question of a sub query; TSUIDs become the series that they are of.

    Raises:
      ApiError: TSUIDs that the layout does not have, or of several metrics.
      ValueError: a TSUID is wrong.
    """
    question = asked.question(sub_query)
    if not sub_query.raw.tsuids:
        return question
    layout = find_capability(api.layout, UidTables)
    if layout is None:
        raise ApiError(f"Layout {api.layout.name} has no TSUIDs; query by metric and tags")
    series = frozenset(series_of_tsuids(layout, sub_query.raw.tsuids, api.reader).values())
    metrics = sorted({member.metric for member in series})
    if len(metrics) > 1:
        raise ApiError(f"One or more TSUIDs did not share the same metric [{metrics[0]}] [{metrics[1]}]")
    return dataclasses.replace(question, metric=metrics[0], tags={}, group_by=(), filters=(), series=series)


def _annotations(api: Api, question: Question) -> dict[Series, Sequence[Annotation]]:
    """The annotations of series in the hours that the question reads."""
    layout = find_capability(api.layout, Annotations)
    if layout is None:
        return {}
    within = question.range
    selection = Selection(question.metric, question.tags, within.first_ms, within.until_ms - 1)
    found, damage = find_annotations(api.target, layout, selection, meter=api.meter)
    api.skipped.extend(damage)
    return dict(found.of_series)


def _key_uids(api: Api, question: Question) -> dict[str, bytes]:
    """The UIDs of the tag keys that are filtered."""
    layout = find_capability(api.layout, UidTables)
    if layout is None:
        return {}
    names = [Name("tagk", key) for key in question.tags]
    uids = look_up(layout.uid_table, names, api.reader)
    return {name.text: uid for name, uid in uids.items()}
