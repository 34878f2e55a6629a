"""What a request of the API may ask for: it is refused in a plain sentence before it costs anything."""

from __future__ import annotations

import gc
import json
import weakref
from urllib.parse import quote

import pytest

from timebeam.pipelines.serve.targets import request_of
from timebeam.schema.api.errors import ApiError
from timebeam.schema.api.json_query import json_query
from timebeam.schema.api.uri_query import uri_query
from timebeam.schema.common.regex import PatternError, compiled
from timebeam.schema.query.filters import MOST_PATTERN, TagFilter


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
    with pytest.raises(ApiError) as refused:
        send([*filters, "host=b"])
    assert refused.value.status == 413
    assert refused.value.message == (
        "The request has 65 filters of tags; at most 64 are allowed. Name several values in one filter, or "
        "send several requests"
    )


@pytest.mark.parametrize("send", [by_url, posted])
def test_a_long_regular_expression_is_refused(send) -> None:
    send([f"host=regexp({'a' * MOST_PATTERN})"])
    with pytest.raises(ApiError) as refused:
        send([f"host=regexp({'a' * (MOST_PATTERN + 1)})"])
    assert refused.value.status == 400
    reason = "a regular expression of 1,001 characters; at most 1,000 are allowed: shorten it"
    assert reason in refused.value.message + refused.value.details


@pytest.mark.parametrize("pattern", [r"\pL{1,400}", r"(\pL{1,10}){1,10}", "(?i)" + r"\PL" * 300])
def test_a_pattern_that_compiles_to_more_than_1_mib_is_refused(pattern: str) -> None:
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
