"""Requests and answers of remote read, against protobuf's own library; the mapping of names to labels."""

from __future__ import annotations

import contextlib
import math
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.servers import remote_read as client
from tests.support.servers.remote_read import EQ, NEQ, NRE, RE
from timebeam.schema.core.points import Series
from timebeam.schema.stores.opentsdb.http.api_request import ApiError
from timebeam.schema.stores.opentsdb.http.remote_read_messages import (
    LabelledPoints,
    label_name,
    metric_label,
    metrics_of,
    name_of,
    read_request,
    read_response,
    utf8_label_name,
    utf8_metric_label,
)

CPU = Series.of("sys.cpu", {"host": "web01", "k8s.pod": "a/b"})


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("sys.cpu.user", "sys:cpu:user"),
        ("up_time", "up_time"),
        ("disk-io", "U__disk_2d_io"),
        ("a-b_c", "U__a_2d_b__c"),
        ("5xx", "U___35_xx"),
        ("a:b.c", "U__a_3a_b_2e_c"),
        ("U__a", "U__U____a"),
        ("grün", "U__gr_fc_n"),
    ],
)
def test_labels_of_metrics(metric: str, label: str) -> None:
    assert metric_label(metric) == label
    assert name_of(label) == metric


@pytest.mark.parametrize(
    ("label", "metrics"),
    [
        ("job:load_1", ["job:load_1", "job.load_1"]),
        ("up", ["up"]),
        ("a.b", ["a.b"]),
        ("U__a_3a_b", ["a:b"]),
        ("U___", []),
    ],
)
def test_metrics_of_labels(label: str, metrics: list[str]) -> None:
    assert metrics_of(label) == metrics
    assert {metric_label("job:load_1"), metric_label("job.load_1")} == {"job:load_1"}


@pytest.mark.parametrize(
    ("key", "label"),
    [("host", "host"), ("k8s.pod", "U__k8s_2e_pod"), ("__name__", "U______name____"), ("0", "U___30_")],
)
def test_labels_of_tag_keys(key: str, label: str) -> None:
    assert label_name(key) == label
    assert name_of(label) == key


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("U_.:-09"), min_size=1))
def test_every_name_has_a_label(name: str) -> None:
    assert name_of(label_name(name)) == name
    assert name in metrics_of(metric_label(name))
    assert name_of(utf8_metric_label(name)) == name_of(utf8_label_name(name)) == name
    assert not utf8_label_name(name).startswith("__")
    assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", metric_label(name))
    assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label_name(name))
    assert not label_name(name).startswith("__")


@pytest.mark.parametrize("label", ["U__a_b", "U___110000_", "U___d800_", "U___"])
def test_a_label_of_no_name(label: str) -> None:
    assert name_of(label) is None


@pytest.mark.parametrize(
    ("matcher", "passes"),
    [
        ((EQ, "__name__", "sys:cpu"), True),
        ((EQ, "__name__", "sys.cpu"), True),
        ((EQ, "__name__", "sys-cpu"), False),
        ((RE, "__name__", "sys:.*"), True),
        ((EQ, "host", "web01"), True),
        ((EQ, "U__k8s_2e_pod", "a/b"), True),
        ((EQ, "k8s.pod", "a/b"), True),
        ((EQ, "k8s:pod", "a/b"), False),
        ((EQ, "dc", ""), True),
        ((NEQ, "dc", ""), False),
        ((NEQ, "dc", "lax"), True),
        ((NEQ, "host", "web01"), False),
        ((RE, "host", "web"), False),
        ((RE, "host", "web.."), True),
        ((RE, "host", "x|web01"), True),
        ((RE, "dc", "lax|"), True),
        ((NRE, "host", "web.."), False),
        ((NRE, "dc", ".+"), True),
        ((NEQ, "__rollup__", "1h-max"), True),
        ((RE, "__rollup__", "1h-.*"), False),
    ],
)
def test_matchers(matcher: tuple[int, str, str], passes: bool) -> None:
    (query,) = read_request(client.request(5, 9, matcher))
    assert (query.start_ms, query.end_ms, query.rollup) == (5, 9, None)
    assert query.passes(CPU) is passes
    assert query.passes_name("sys.cpu") is (passes or matcher[1] != "__name__")


def test_names_of_utf8_are_answered_as_they_were_asked_for() -> None:
    asked = [(EQ, "__name__", "sys.cpu"), (RE, "k8s.pod", "a.*")]
    (query,) = read_request(client.request(5, 9, *asked))
    assert (query.metrics, query.passes_name("sys.cpu")) == (["sys.cpu"], True)
    assert query.labels(CPU) == {"__name__": "sys.cpu", "host": "web01", "k8s.pod": "a/b"}
    (query,) = read_request(client.request(5, 9, (EQ, "__name__", "größe:a-b"), (EQ, "k8s:pod-", "x")))
    assert (query.metrics, query.tags) == (["größe:a-b"], {"k8s:pod-": {"x"}})
    (query,) = read_request(client.request(5, 9, (EQ, "__name__", "sys:cpu")))
    assert query.labels(CPU) == {"U__k8s_2e_pod": "a/b", "__name__": "sys:cpu", "host": "web01"}
    assert query.labels(Series.of("sys:cpu", {})) == {"__name__": "sys:cpu"}


def test_what_equals_is_looked_for_by_name() -> None:
    matchers = [
        (EQ, "__name__", "sys:cpu"),
        (EQ, "host", "web01"),
        (EQ, "U__k8s_2e_pod", "a"),
        (EQ, "dc", ""),
        (RE, "rack", "1.*"),
        (EQ, "__rollup__", "1h-max"),
        (EQ, "replica", "A"),
    ]
    (query,) = read_request(client.request(-(1 << 62), (1 << 63) - 1, *matchers), ["replica"])
    assert (query.metrics, query.rollup) == (["sys:cpu", "sys.cpu"], "1h-max")
    assert query.tags == {"host": {"web01"}, "k8s.pod": {"a"}}
    assert (query.start_ms, query.end_ms) == (0, 253_402_300_799_999)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Not a remote read request"),
        (b"\xff\xff\xff\xff\x0f", "at most 1,048,576"),
        (b"\x05hello", "Not a remote read request"),
        (pa.compress(b"\x0a\x7f", codec="snappy", asbytes=True), "Not a remote read request"),
        (client.request(0, 1, (7, "a", "b")), "a matcher of type 7"),
        (client.request(0, 1, (RE, "a", "(")), "Unsupported regular expression"),
        (client.request(0, 1, (RE, "a", "x" * 1001)), "at most 1,000"),
        (client.request(0, 1, *[(EQ, "a", "b")] * 65), "at most 64"),
        (pa.compress(b"\x0a\x00" * 65, codec="snappy", asbytes=True), "at most 64"),
        (client.request(0, 1, accepted=[1]), "Only answers of type SAMPLES"),
    ],
)
def test_a_wrong_request_is_rejected(body: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=re.escape(message)):
        read_request(body)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_rejected(message: bytes) -> None:
    with contextlib.suppress(ApiError):
        read_request(pa.compress(message, codec="snappy", asbytes=True))


def test_a_request_of_samples_may_say_so_or_nothing() -> None:
    for accepted in ([], [0], [1, 0]):
        assert len(read_request(client.request(0, 1, accepted=accepted))) == 1


def test_an_answer_is_sorted_by_labels() -> None:
    times_ms = np.array([0, 127, 128, 1_709_287_200_000, 253_402_300_799_999])
    decimals = np.array([0.1, -math.inf, 1e300, -0.0, 5e-324])
    result = [
        LabelledPoints({"__name__": "b"}, times_ms, decimals),
        LabelledPoints({"__name__": "a", "z": "ü"}, times_ms[:1], np.array([7])),
        LabelledPoints({"__name__": "a", "host": "h"}, times_ms[:0], decimals[:0]),
    ]
    assert client.answer(read_response([result])) == [
        ({"__name__": "a", "host": "h"}, []),
        ({"__name__": "a", "z": "ü"}, [(0, 7.0)]),
        ({"__name__": "b"}, list(zip(times_ms.tolist(), decimals.tolist(), strict=True))),
    ]


def test_no_nan_is_the_one_that_ends_a_series() -> None:
    stale = np.array([0x7FF0000000000002]).view(np.float64)
    body = read_response([[LabelledPoints({}, np.array([1]), stale)]])
    message = pa.decompress(body, body[0], codec="snappy", asbytes=True)
    assert stale.tobytes() not in message
    assert math.isnan(client.answer(body)[0][1][0][1])
