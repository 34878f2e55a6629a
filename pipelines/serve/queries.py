"""/api/query and /api/v1/read: what a checked query asks for, for a TSD's clients and for Prometheus."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.searches import metric_names
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.selection import UnknownNameError
from timebeam.schema.query.aggregate import AGGREGATORS
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.question import NONE, Question
from timebeam.schema.stores import find_opentsdb
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request
from timebeam.schema.stores.opentsdb.http.gexp import MOST_ARGUMENTS, Indexed, parse_expression
from timebeam.schema.stores.opentsdb.http.query_answer import (
    OBJECT_POINTS,
    POINT_BYTES,
    Answered,
    answer_body,
    check_finite,
)
from timebeam.schema.stores.opentsdb.http.remote_read_messages import (
    LabelledPoints,
    ReadQuery,
    read_request,
    read_response,
)
from timebeam.schema.stores.opentsdb.http.ts_query import SubQuery, TsQuery, checked, json_query
from timebeam.schema.stores.opentsdb.http.uri_query import metric_sub_query, uri_query
from timebeam.schema.stores.opentsdb.uids.uid_table import look_up_shown
from timebeam.transforms.opentsdb.read_annotations import global_annotations
from timebeam.transforms.opentsdb.stored_series import question_of_tsuids
from timebeam.transforms.query.answer_question import Evaluated

if TYPE_CHECKING:
    pass

ROLLUP_RAW = "ROLLUP_RAW"
"""What `rollupUsage` says to read points alone."""


_OF_GROUPS = {"SUM": "zimsum", "COUNT": "zimsum", "MIN": "mimmin", "MAX": "mimmax"}
"""The aggregators that make pre-aggregates, by the values of their tag."""


def query(api: Api, request: Request) -> Any:
    """The answer to /api/query.

    Raises:
      ApiError: the request is wrong, or names what is not there.
    """
    now_ms = int(time.time() * 1000)
    raw = json_query(request) if request.method == "POST" else uri_query(request)
    asked = checked(raw, now_ms)
    answers = [answered(api, asked, index, now_ms) for index in range(len(asked.queries))]
    return _body(api, request, asked, answers)


def _body(api: Api, request: Request, asked: TsQuery, answers: Sequence[Answered]) -> Any:
    return answer_body(
        asked,
        answers,
        shown_globally(api, asked),
        arrays=request.has("arrays"),
        leaves_out_nan=request.leaves_out_nan,
        add_shown=api.meter.add_shown,
    )


def expressions(api: Api, request: Request) -> Any:
    """The answer to /api/query/gexp: the results of functions of queries.

    Raises:
      ApiError: see `query`; or an expression is wrong.
    """
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
    index_of = {sub_query: index for index, sub_query in enumerate(asked.queries)}
    results_of = {
        text: [
            Indexed(index, result, answers[index].first_tsuid(result)) for result in answers[index].results
        ]
        for text in dict.fromkeys(texts)
        for index in (index_of[metric_sub_query(text)],)
    }
    evaluated = [
        item for expression in parsed for item in expression.evaluate(results_of, api.meter.add_points)
    ]
    of_items = [dataclasses.replace(answers[item.index], results=[item.result]) for item in evaluated]
    return _body(api, request, asked, of_items)


def answered(api: Api, asked: TsQuery, index: int, now_ms: int) -> Answered:
    """The answer to one sub query.

    Raises:
      ApiError: a name is in no table, or a fill is too large.
    """
    raw = asked.queries[index]
    annotates = not asked.no_annotations
    try:
        question, pre_aggregate = _question(api, asked, raw)
        if raw.percentiles or raw.has_buckets:
            evaluated = api.histograms(
                question, raw.percentiles or (), has_buckets=raw.has_buckets, with_annotations=annotates
            )
        else:
            evaluated = _evaluated(api, asked, raw, question, now_ms)
    except UnknownNameError as error:
        raise ApiError(error.args[0], details=error.args[0]) from error
    except ValueError as error:
        raise ApiError(str(error)) from error
    api.skipped.extend(evaluated.corruption)
    results = evaluated.results
    if find_opentsdb(api.store) is not None:
        check_finite(results)
    if pre_aggregate:
        results = [
            dataclasses.replace(result, tags=dict(sorted((result.tags | pre_aggregate).items())))
            for result in results
        ]
    key_uids = _key_uids(api, question) if asked.show_query else {}
    return Answered(index, results, evaluated.tsuids, key_uids, evaluated.stats, evaluated.interval)


def _evaluated(api: Api, asked: TsQuery, sub_query: SubQuery, question: Question, now_ms: int) -> Evaluated:
    """The answer to the question of a sub query; with statistics of what it took, it is not cached."""
    has_stats = asked.show_stats or asked.show_summary
    return api.answer(
        question,
        now_ms,
        with_annotations=not asked.no_annotations,
        with_rollups=(sub_query.rollup_usage or "").upper() != ROLLUP_RAW,
        cache_key=None if has_stats else (sub_query, sub_query.downsampling, asked.start_ms, asked.end_ms),
    )


def shown_globally(api: Api, asked: TsQuery) -> list[Annotation] | None:
    """The global annotations that a query asks for; None where a TSD shows no list."""
    layout = find_opentsdb(api.store)
    if layout is None or asked.no_annotations or not asked.global_annotations:
        return None
    notes, corruption = global_annotations(api.target, layout, asked.start_ms, asked.end_ms)
    api.skipped.extend(corruption)
    return notes


def _question(api: Api, asked: TsQuery, sub_query: SubQuery) -> tuple[Question, dict[str, str]]:
    """(the question of a sub query, the tag of pre-aggregates that it asks for, if any).

    `preAggregate` with the tag `_aggregate=SUM` asks for groups of series, which have nothing where
    a series has no point: pre-aggregates answer it where they are, and else the series that they are made of.

    Raises:
      ValueError: a TSUID is wrong, or the tag of pre-aggregates does not fit the aggregator.
    """
    raw, tag = sub_query, dict[str, str]()
    if raw.pre_aggregate and api.rollups is not None:
        key = api.rollups[1].agg_tag_key
        for value in (item.text for item in raw.filters if item.key == key):
            aggregator, asked_for = _OF_GROUPS.get(value.upper(), ""), raw.aggregator or ""
            if not {aggregator, asked_for} <= AGGREGATORS.keys() or (
                AGGREGATORS[aggregator].fold is not AGGREGATORS[asked_for].fold
            ):
                raise ValueError(f"preAggregate: {key}={value} cannot be aggregated by {raw.aggregator}")
            tag = {key: value}
            raw = dataclasses.replace(raw, aggregator=aggregator)
        raw = dataclasses.replace(raw, filters=tuple(item for item in raw.filters if item.key != key))
    question = asked.question(raw)
    if raw.tsuids:
        question = question_of_tsuids(question, api.store, raw.tsuids, api.reader)
    return question, tag


def _key_uids(api: Api, question: Question) -> dict[str, bytes]:
    """The UIDs of the tag keys that are filtered."""
    layout = find_opentsdb(api.store)
    if layout is None:
        return {}
    names = [Name("tagk", key) for key in question.tags]
    uids = look_up_shown(layout.options, names, api.reader)
    return {name.text: uid for name, uid in uids.items()}


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
            f"the answer would be incomplete, {count}: {'; '.join(api.skipped[:_SHOWN])}; repair corruption "
            "(`timebeam check`), or exclude these series with matchers",
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
    seen: set[tuple[tuple[str, str], ...]] = set()
    for metric in query.metrics or filter(query.passes_name, metric_names(api)):
        question = Question(
            metric, query.tags, (), NONE, downsampling, query.start_ms, query.end_ms, matches=query.passes
        )
        try:
            evaluated = api.answer(question, now_ms, with_rollups=downsampling is not None)
        except UnknownNameError:
            continue
        except ValueError as error:
            raise ApiError(str(error)) from error
        api.skipped.extend(evaluated.corruption)
        for result in evaluated.results:
            labels = query.labels(result.members[0])
            if labels is None or not len(result.times_ms):
                continue
            if (*labels.items(),) in seen:
                api.skipped.append(f"{result.members[0]}: another series has its labels in Prometheus")
                continue
            seen.add((*labels.items(),))
            size = sum(len(name) + len(value) for name, value in labels.items())
            api.meter.add_shown(len(result.times_ms) + OBJECT_POINTS + size // POINT_BYTES)
            yield LabelledPoints(labels, result.times_ms, result.values)
