"""What a request of the API may ask for: it is rejected in a plain sentence before it costs anything."""

from __future__ import annotations

import gc
import json
import weakref
from urllib.parse import quote

import numpy as np
import pytest

from timebeam.pipelines.serve.route_requests import request_of
from timebeam.schema.bits.regex import PatternError, compiled
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.points import Series
from timebeam.schema.query.answer import Result
from timebeam.schema.query.question import MOST_PATTERN, TagFilter
from timebeam.schema.stores.opentsdb.http.api_request import ApiError
from timebeam.schema.stores.opentsdb.http.gexp import Indexed, parse_expression
from timebeam.schema.stores.opentsdb.http.query_answer import Answered, answer_body
from timebeam.schema.stores.opentsdb.http.ts_query import checked, json_query
from timebeam.schema.stores.opentsdb.http.uri_query import uri_query


def by_url(filters: list[str]) -> None:
    texts = [f"m=sum:cpu{{{quote(text)}}}" for text in filters]
    uri_query(request_of("GET", "/api/query?start=1h-ago&" + "&".join(texts)))


def by_second_braces(filters: list[str]) -> None:
    uri_query(request_of("GET", "/api/query?start=1h-ago&m=sum:cpu{}{" + quote(",".join(filters)) + "}"))


def posted(filters: list[str]) -> None:
    tags = [text.split("=", 1) for text in filters]
    queries = [{"aggregator": "sum", "metric": "cpu", "tags": {key: value}} for key, value in tags]
    post({"start": "1h-ago", "queries": queries})


def posted_as_filters(filters: list[str]) -> None:
    parsed = [TagFilter.of_value(*text.split("=", 1), group_by=False) for text in filters]
    members = [{"type": item.kind, "tagk": item.key, "filter": item.text} for item in parsed]
    post({"start": "1h-ago", "queries": [{"aggregator": "sum", "metric": "cpu", "filters": members}]})


def post(body: object) -> None:
    json_query(request_of("POST", "/api/query", json.dumps(body).encode()))


@pytest.mark.parametrize("send", [by_url, by_second_braces, posted, posted_as_filters])
def test_a_request_has_at_most_64_filters(send) -> None:
    filters = [f"k{number}=regexp(a{number})" for number in range(64)]
    send(filters)
    with pytest.raises(ApiError) as rejected:
        send([*filters, "host=b"])
    assert rejected.value.status == 413
    assert rejected.value.message == (
        "The request has 65 filters of tags; at most 64 are allowed. Name several values in one filter, or "
        "send several requests"
    )


@pytest.mark.parametrize("send", [by_url, posted])
def test_a_long_regular_expression_is_rejected(send) -> None:
    send([f"host=regexp({'a' * MOST_PATTERN})"])
    with pytest.raises(ApiError) as rejected:
        send([f"host=regexp({'a' * (MOST_PATTERN + 1)})"])
    assert rejected.value.status == 400
    reason = "a regular expression of 1,001 characters; at most 1,000 are allowed: shorten it"
    assert reason in rejected.value.message + rejected.value.details


@pytest.mark.parametrize("pattern", [r"\pL{1,400}", r"(\pL{1,10}){1,10}", "(?i)" + r"\PL" * 300])
def test_a_pattern_that_compiles_to_more_than_1_mib_is_rejected(pattern: str) -> None:
    with pytest.raises(PatternError, match="pattern too large"):
        compiled(pattern)


@pytest.mark.parametrize("kind", ["literal_or", "not_iliteral_or", "iwildcard"])
def test_a_compiled_filter_lives_no_longer_than_its_query(kind: str) -> None:
    class Text(str):
        """A string that can be watched."""

    watched = Text("a*|b")
    tag_filter = TagFilter(kind, "host", watched)
    assert tag_filter.passes("aab") is (kind == "not_iliteral_or")
    gone = weakref.ref(watched)
    del tag_filter, watched
    gc.collect()
    assert gone() is None


class FullError(Exception):
    """There is no room for more."""


@pytest.mark.parametrize(
    ("parameters", "cost"),
    [("", 4 + 3), ("&show_tsuids", 4 + 3 + 2), ("&global_annotations", 4 + 3 + 4 + 40)],
)
def test_each_result_is_counted_with_what_it_holds_before_it_is_written(parameters: str, cost: int) -> None:
    target = f"/api/query?start=1000&end=2000&m=sum:cpu{parameters}"
    query = checked(uri_query(request_of("GET", target)), 3_000_000)
    members = [Series.of("cpu", {"host": host}) for host in "ab"]
    times_ms = np.array([1_000_000, 1_000_001, 1_000_002])
    result = Result("cpu", {}, ["host"], times_ms, times_ms, members=members)
    answers = [Answered(0, [result] * 5)]
    notes = [Annotation("", 1001, description="x" * 9_999)] if "global" in parameters else []
    costs: list[int] = []
    answer_body(query, answers, notes, arrays=False, add_shown=costs.append)
    assert costs == [cost] * 5

    def add_shown(count: int) -> None:
        raise FullError

    with pytest.raises(FullError):
        answer_body(query, answers, notes, arrays=False, add_shown=add_shown)


def test_a_difference_makes_no_more_points_than_were_counted_before() -> None:
    results_of = {
        text: [
            Indexed(0, Result(text, {"host": f"{text}{number}"}, [], times_ms, times_ms))
            for number in range(10)
            for times_ms in (np.arange(3) * 20 + 2 * number + (text == "b:b"),)
        ]
        for text in ("a:a", "b:b")
    }
    counts: list[int] = []
    results = parse_expression("diffSeries(a:a,b:b)").evaluate(results_of, counts.append)
    assert sum(len(item.result.times_ms) for item in results) == 20 * 3
    assert counts == [2 * 10 * 3]
