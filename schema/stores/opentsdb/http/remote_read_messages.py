"""Prometheus' remote read: a request becomes matchers of labels, series become its answer.

prompb/remote.proto and prompb/types.proto of Prometheus 2.42; both messages are raw Snappy blocks.

    message ReadRequest  { repeated Query queries = 1; repeated ResponseType accepted_response_types = 2; }
    message Query        { int64 start_timestamp_ms = 1; int64 end_timestamp_ms = 2;
                           repeated LabelMatcher matchers = 3; ReadHints hints = 4; }
    message LabelMatcher { enum Type { EQ, NEQ, RE, NRE } type = 1; string name = 2; string value = 3; }
    message ReadResponse { repeated QueryResult results = 1; }
    message QueryResult  { repeated TimeSeries timeseries = 1; }
    message TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2; }
    message Label        { string name = 1; string value = 2; }
    message Sample       { double value = 1; int64 timestamp = 2; }

A metric is the label `__name__`, with `:` for each `.`; a tag is the label of its key. So `a:b` is a metric
`a.b`, or one of just this name, as of a recording rule. A name that Prometheus does not allow otherwise, or
that begins with `U__`, is `U__` and the name with `__` for `_` and `_HEX_` for each other illegal character,
as in Prometheus' own escaping of names.

Prometheus 3 allows all of UTF-8 in names and asks for `{"sys.cpu.user", "k8s.pod"="a"}`. Series that pass the
matchers only with their names as they are have them in the answer.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Int64s, Values, to_floats
from timebeam.schema.bits.compression import snappy
from timebeam.schema.bits.protobuf import (
    ProtoError,
    encoded_bytes,
    encoded_varint,
    fields,
    unpacked_varints,
    varint,
)
from timebeam.schema.bits.regex import PatternError, compiled
from timebeam.schema.bits.times import LATEST_MS
from timebeam.schema.core.points import Series
from timebeam.schema.query.question import MOST_PATTERN
from timebeam.schema.stores.opentsdb.http.api_request import ApiError
from timebeam.schema.stores.opentsdb.http.ts_query import check_filters

NAME, ROLLUP = "__name__", "__rollup__"
"""The labels of the metric, and of a downsampling such as 1h-max, which may come from rollups."""

_MOST_BYTES = 1 << 20
_SAMPLES = 0
_ESCAPE = "U__"
_LEGAL_METRIC = re.compile(r"[a-zA-Z_.][a-zA-Z0-9_.]*")
_LEGAL_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LEGACY = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ILLEGAL = re.compile(r"^[0-9]|[^a-zA-Z0-9]")
_ESCAPED = re.compile(r"__|_([0-9a-fA-F]{1,6})_|_")


class MatcherType(enum.IntEnum):
    """How a matcher compares the value of a label; a series without it has the empty value."""

    EQ = 0
    NEQ = 1
    RE = 2
    NRE = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Matcher:
    """A condition of a label; a regular expression must match all of its value."""

    kind: MatcherType
    name: str
    value: str

    def passes(self, value: str) -> bool:
        """Whether the value of the label passes."""
        if self.kind in (MatcherType.EQ, MatcherType.NEQ):
            return (value == self.value) is (self.kind is MatcherType.EQ)
        matches = compiled(f"^(?:{self.value})$").search(value) is not None
        return matches is (self.kind is MatcherType.RE)


@dataclasses.dataclass(frozen=True, slots=True)
class ReadQuery:
    """A query of a request.

    Attributes:
      start_ms, end_ms: first and last time, both inclusive.
      metrics: those that the matchers can mean by EQ; empty if they name none.
      tags: what series must have, by key, as far as matchers say it by EQ.
      rollup: the downsampling, of `ROLLUP`; None for points.
    """

    start_ms: int
    end_ms: int
    matchers: Sequence[Matcher]
    metrics: Sequence[str]
    tags: Mapping[str, frozenset[str]]
    rollup: str | None

    def passes_name(self, metric: str) -> bool:
        """Whether the matchers of `NAME` pass a metric, as either of its labels."""
        matchers = [matcher for matcher in self.matchers if matcher.name == NAME]
        labels = metric_label(metric), utf8_metric_label(metric)
        return any(all(matcher.passes(label) for matcher in matchers) for label in labels)

    def labels(self, series: Series) -> dict[str, str] | None:
        """The labels of a series, sorted, which pass the matchers; None if it does not pass."""
        for of_metric, of_key in ((metric_label, label_name), (utf8_metric_label, utf8_label_name)):
            labels = {of_key(key): value for key, value in series.tags if value}
            labels[NAME] = of_metric(series.metric)
            if self.rollup is not None:
                labels[ROLLUP] = self.rollup
            if all(matcher.passes(labels.get(matcher.name, "")) for matcher in self.matchers):
                return dict(sorted(labels.items()))
        return None

    def passes(self, series: Series) -> bool:
        """Whether a series passes."""
        return self.labels(series) is not None


class LabelledPoints(NamedTuple):
    """A series of an answer; n points."""

    labels: Mapping[str, str]
    times_ms: Int64s
    values: Values


def metric_label(metric: str) -> str:
    """The value of `NAME` of a metric.

    >>> metric_label("sys.cpu.user"), name_of("sys:cpu:user")
    ('sys:cpu:user', 'sys.cpu.user')
    """
    is_legal = _LEGAL_METRIC.fullmatch(metric) or _LEGACY.fullmatch(metric)
    if is_legal and not metric.startswith(_ESCAPE):
        return metric.replace(".", ":")
    return _escaped(metric)


def label_name(key: str) -> str:
    """The name of the label of a tag key; those that begin with `__` are Prometheus' own."""
    if _LEGAL_KEY.fullmatch(key) and not key.startswith((_ESCAPE, "__")):
        return key
    return _escaped(key)


def utf8_metric_label(metric: str) -> str:
    """The value of `NAME` of a metric where all of UTF-8 is allowed; escaped if it would be another's."""
    return metric if name_of(metric) == metric else _escaped(metric)


def utf8_label_name(key: str) -> str:
    """The name of the label of a tag key where all of UTF-8 is allowed."""
    return key if name_of(key) == key and not key.startswith("__") else _escaped(key)


def metrics_of(label: str) -> list[str]:
    """The metrics that a value of `NAME` can mean: with `:` as they are, and with `.`."""
    name = name_of(label)
    names = [label, name] if _LEGACY.fullmatch(label) and not label.startswith(_ESCAPE) else [name]
    return [*dict.fromkeys(each for each in names if each is not None)]


def name_of(label: str) -> str | None:
    """The metric or tag key of a label that one of these functions gives; None if there is none.

    See `metrics_of` for metrics with `:`.
    """
    if not label.startswith(_ESCAPE):
        return label.replace(":", ".") if _LEGACY.fullmatch(label) else label
    try:
        return _ESCAPED.sub(_unescaped, label.removeprefix(_ESCAPE))
    except ValueError:
        return None


def _escaped(name: str) -> str:
    return _ESCAPE + _ILLEGAL.sub(lambda match: "__" if match[0] == "_" else f"_{ord(match[0]):x}_", name)


def _unescaped(match: re.Match[str]) -> str:
    if match[0] == "_":
        raise ValueError("an underscore that begins no escape")
    character = "_" if match[1] is None else chr(int(match[1], 16))
    character.encode()
    return character


def read_request(body: bytes, ignored: Sequence[str] = ()) -> list[ReadQuery]:
    """The queries of a request.

    Args:
      ignored: labels whose matchers are passed over, such as the external labels of a Prometheus.

    Raises:
      ApiError: it is no request, has too many or too long matchers, or accepts no samples.
    """
    try:
        size, _ = varint(body, 0)
        if size > _MOST_BYTES:
            raise ProtoError(f"{size:,} bytes; at most {_MOST_BYTES:,} are read")
        members = list(fields(snappy(body)))
        accepted = [
            number
            for field, value in members
            if field >> 3 == 2  # packed or not
            for number in ((value,) if isinstance(value, int) else unpacked_varints(value))
        ]
        if accepted and _SAMPLES not in accepted:
            raise ApiError("Only answers of type SAMPLES are served")
        messages = [value for field, value in members if field >> 3 == 1 and isinstance(value, bytes)]
        # A query without a matcher counts as one: 46 kB of Snappy hold half a million of them.
        check_filters(sum(max(1, sum(field >> 3 == 3 for field, _ in fields(text))) for text in messages))
        return [_query(message, ignored) for message in messages]
    except (ProtoError, IndexError, OSError, UnicodeDecodeError) as error:
        raise ApiError(f"Not a remote read request: {error}") from error
    except PatternError as error:
        raise ApiError(f"Unsupported regular expression: {error}") from error


def _query(message: bytes, ignored: Sequence[str]) -> ReadQuery:
    members = list(fields(message))
    times = {field >> 3: value for field, value in members if isinstance(value, int)}
    texts = [value for field, value in members if field >> 3 == 3 and isinstance(value, bytes)]
    matchers = [matcher for matcher in map(_matcher, texts) if matcher.name not in ignored]
    equal = {matcher.name: matcher.value for matcher in matchers if matcher.kind is MatcherType.EQ}
    metrics = metrics_of(equal[NAME]) if equal.get(NAME) else []
    tags = {
        key: frozenset({value})
        for label, value in equal.items()
        if value and label not in (NAME, ROLLUP)
        for key in (name_of(label),)
        if key
    }
    start_ms, end_ms = (min(max(_signed(times.get(field, 0)), 0), LATEST_MS) for field in (1, 2))
    return ReadQuery(start_ms, end_ms, matchers, metrics, tags, equal.get(ROLLUP) or None)


def _signed(number: int) -> int:
    """An int64 of its bits."""
    return number - (1 << 64) if number >> 63 else number


def _matcher(message: bytes) -> Matcher:
    members = {field >> 3: value for field, value in fields(message)}
    number, name, value = members.get(1, 0), members.get(2, b""), members.get(3, b"")
    if number not in list(MatcherType) or not isinstance(name, bytes) or not isinstance(value, bytes):
        raise ProtoError(f"a matcher of type {number!r}")
    kind = MatcherType(int(number))
    matcher = Matcher(kind, name.decode(), value.decode())
    if kind in (MatcherType.RE, MatcherType.NRE):
        if len(matcher.value) > MOST_PATTERN:
            raise PatternError(
                f"it has {len(matcher.value):,} characters; at most {MOST_PATTERN:,} are allowed"
            )
        matcher.passes("")  # compiles it
    return matcher


def read_response(results: Sequence[Sequence[LabelledPoints]]) -> bytes:
    """The answer: of each query its series, sorted by their labels."""
    in_order = (sorted(result, key=lambda series: tuple(series.labels.items())) for result in results)
    message = b"".join(
        encoded_bytes(1, b"".join(encoded_bytes(1, _time_series(series)) for series in result))
        for result in in_order
    )
    compressed: bytes = pa.compress(message, codec="snappy", asbytes=True)
    return compressed


def _time_series(series: LabelledPoints) -> bytes:
    labels = (
        encoded_bytes(1, encoded_bytes(1, name.encode()) + encoded_bytes(2, value.encode()))
        for name, value in series.labels.items()
    )
    return b"".join(labels) + _samples(series.times_ms, series.values)


def _samples(times_ms: Int64s, values: Values) -> bytes:
    """The samples in records of one size: times get as many bytes as the last one needs."""
    if not len(times_ms):
        return b""
    width = len(encoded_varint(int(times_ms[-1])))
    record = np.dtype([("head", "u1", 3), ("value", "<f8"), ("time_tag", "u1"), ("time", "u1", (width,))])
    samples = np.zeros(len(times_ms), record)
    samples["head"] = 2 << 3 | 2, record.itemsize - 2, 1 << 3 | 1
    floats = to_floats(values)
    samples["value"] = np.where(np.isnan(floats), np.nan, floats)  # other NaN end a series in Prometheus
    samples["time_tag"] = 2 << 3
    samples["time"] = times_ms[:, None] >> np.arange(0, 7 * width, 7) & 0x7F
    samples["time"][:, :-1] |= 0x80
    return samples.tobytes()
