"""The records that flow through every pipeline: series, batches of points, and refused input.

Nothing here knows a wire format or a stored layout. Times are milliseconds since 1970-01-01 UTC
unless a name says otherwise.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def source_checksum(source: str) -> int:
    """The rank of a source among those whose input arrived at one time: the greatest one wins."""
    return zlib.crc32(source.encode())


class Kind(enum.IntEnum):
    """The meaning of the 64 bits of a value.

    For values from TEXT on the bits are an index into `PointBatch.payloads`. TEXT is UTF-8, as KairosDB
    stores; OPAQUE is bytes that only their producer understands, as Heroic's distributions; HISTOGRAM is
    `HistogramBytes`.
    """

    INTEGER = 0
    FLOAT = 1
    TEXT = 2
    OPAQUE = 3
    HISTOGRAM = 4


class HistogramBytes(bytes):
    """A histogram as OpenTSDB stores it: the id of a codec, and what this codec defines."""


class Series(NamedTuple):
    """A metric and its tags, the tags sorted by key so that equal series compare equal.

    A tuple, since it is the key of every cache and a tuple's hash costs half of a dataclass's.
    """

    metric: str
    tags: tuple[tuple[str, str], ...]
    resources: tuple[tuple[str, str], ...] = ()
    """Heroic's second kind of tags, also sorted; most layouts cannot store them."""

    @classmethod
    def of(cls, metric: str, tags: dict[str, str], resources: dict[str, str] | None = None) -> Series:
        """The series of a metric and a mapping of tag keys to tag values."""
        return cls(metric, tuple(sorted(tags.items())), tuple(sorted(resources.items())) if resources else ())

    def __str__(self) -> str:
        pairs = [f"{key}={value}" for key, value in self.tags + self.resources]
        return self.metric + "{" + ",".join(pairs) + "}"


class Reason(enum.StrEnum):
    """Why input was refused. The values are stable: dead letters and dashboards use them.

    docs/reference/dead-letters.md explains each; a test proves that the page and this enum agree.
    """

    BAD_ENCODING = "bad-encoding"
    BAD_SYNTAX = "bad-syntax"
    BAD_METRIC = "bad-metric"
    BAD_TAG = "bad-tag"
    DUPLICATE_TAG = "duplicate-tag"
    NO_TAGS = "no-tags"
    TOO_MANY_TAGS = "too-many-tags"
    NAME_NOT_STORABLE = "name-not-storable"
    BAD_TIMESTAMP = "bad-timestamp"
    TIMESTAMP_OUT_OF_RANGE = "timestamp-out-of-range"
    EMPTY_VALUE = "empty-value"
    BAD_NUMBER = "bad-number"
    NUMBER_OUT_OF_RANGE = "number-out-of-range"
    VALUE_NOT_STORABLE = "value-not-storable"
    SERIES_NOT_STORABLE = "series-not-storable"
    LINE_TOO_LONG = "line-too-long"
    TRUNCATED_FILE = "truncated-file"
    CORRUPT_FILE = "corrupt-file"
    CORRUPT_MESSAGE = "corrupt-message"
    UNKNOWN_FORMAT = "unknown-format"
    UNKNOWN_NAME = "unknown-name"
    UIDS_EXHAUSTED = "uids-exhausted"
    SERIES_LIMIT = "series-limit"
    OVER_BIGTABLE_LIMIT = "over-bigtable-limit"
    WRITE_REFUSED = "write-refused"
    INTERNAL_ERROR = "internal-error"


class Stage(enum.StrEnum):
    """The part of a pipeline that refused something."""

    READ = "read"
    PARSE = "parse"
    ASSIGN = "assign"
    ENCODE = "encode"
    VALIDATE = "validate"
    WRITE = "write"


class RefusedError(ValueError):
    """A refused record, with a stable reason and a message that says what to do."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __reduce__(self) -> tuple[type[RefusedError], tuple[Reason, str]]:
        """Pickles both arguments, since an exception pickles only its message."""
        return RefusedError, (self.reason, self.message)


class Envelope(NamedTuple):
    """What Pub/Sub knows about a message beside its payload."""

    message_id: str
    publish_ms: int
    attributes: Mapping[str, str]


class Part(NamedTuple):
    """Which part of a payload a dead letter holds that is too long for one letter.

    Attributes:
      number, total: from 1 to `total`.
      sha256: of the whole payload, in hexadecimal digits.
    """

    number: int
    total: int
    sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Rejected:
    """Refused input: its original bytes, why, and where it came from.

    Attributes:
      payload: the original bytes (of a line, of one element of an array, of a row).
      source: file path or subscription; empty if unknown.
      offset: byte offset of the payload in the (decompressed) file or message; -1 if unknown.
      arrival_ms: its arrival, as in `PointBatch.arrivals_ms`; -1 if unknown.
      envelope: of its Pub/Sub message, if it came in one.
      points: the number of points that it stands for; 1 for bytes that could not be read.
      part: if `payload` is only a part of the original bytes.
    """

    payload: bytes
    reason: Reason
    message: str
    stage: Stage
    source: str = ""
    offset: int = -1
    arrival_ms: int = -1
    envelope: Envelope | None = None
    points: int = 1
    part: Part | None = None


def merged(rejections: Iterable[Rejected]) -> Iterator[Rejected]:
    """Refusals, adjacent ones of the same bytes and reason as one: a record may hold thousands of points."""
    last: Rejected | None = None
    for rejected in rejections:
        if (
            last is not None
            and (last.offset, last.reason, last.source) == (rejected.offset, rejected.reason, rejected.source)
            and last.envelope is rejected.envelope
            and last.payload == rejected.payload
        ):
            last = dataclasses.replace(last, points=last.points + rejected.points)
            continue
        if last is not None:
            yield last
        last = rejected
    if last is not None:
        yield last


@dataclasses.dataclass(frozen=True, slots=True)
class Joined:
    """The m messages that were joined into one text.

    Attributes:
      starts: int64[m], the start of each message in the text, ascending.
      arrivals_ms: int64[m], the arrival of each message.
      envelopes: of each message, or None.
      offsets: int64[m], the offset of each text in its message; not 0 if a message was cut.
    """

    starts: Int64s
    arrivals_ms: Int64s
    envelopes: Sequence[Envelope | None]
    offsets: Int64s

    def arrivals_at(self, starts: Int64s) -> Int64s:
        """int64[n]: the arrival of the message at each of the positions `starts` int64[n]."""
        return self.arrivals_ms[np.searchsorted(self.starts, starts, "right") - 1]

    def addressed(self, rejected: Rejected) -> Rejected:
        """Converts the offset of a refusal from the joined text to its own message."""
        index = int(np.searchsorted(self.starts, rejected.offset, "right")) - 1
        return dataclasses.replace(
            rejected,
            offset=rejected.offset - int(self.starts[index]) + int(self.offsets[index]),
            arrival_ms=int(self.arrivals_ms[index]),
            envelope=self.envelopes[index],
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Origins:
    """The bytes that the points of a batch were read from.

    Attributes:
      text: of the whole block or message, or of several joined messages.
      starts, ends: int64[n], the span of each point in `text`.
      source: file path or subscription.
      offset: byte offset of `text` in the (decompressed) source; 0 if messages were joined.
      joined: the joined messages; None for a single one.
    """

    text: bytes
    starts: Int64s
    ends: Int64s
    source: str
    offset: int
    joined: Joined | None = None

    def take(self, indices: Int64s | slice) -> Origins:
        """The origins of a selection of points."""
        return dataclasses.replace(self, starts=self.starts[indices], ends=self.ends[indices])

    def refuse(self, point: int, reason: Reason, message: str, stage: Stage) -> Rejected:
        """The refusal of one point, with its bytes."""
        start, end = int(self.starts[point]), int(self.ends[point])
        rejected = Rejected(self.text[start:end], reason, message, stage, self.source, self.offset + start)
        return self.joined.addressed(rejected) if self.joined else rejected


@dataclasses.dataclass(frozen=True, slots=True)
class PointBatch:
    """n points in columns.

    Attributes:
      series: the k distinct series of the batch.
      index: int32[n], the number of each point's series.
      times_ms: int64[n], the time of each point in ms.
      in_ms: bool[n], whether the time was given in milliseconds, not seconds; OpenTSDB's layout stores both
        differently.
      kinds: uint8[n], a `Kind` each.
      bits: int64[n], the value, by its kind: a signed 64-bit integer, the bits of a float64, or an index into
        `payloads`.
      arrivals_ms: int64[n], the publish time of the point's message or the modification time of its file.
        Becomes the cell timestamp, so that a later correction of a point wins.
      origins: the input of the points, while it is available.
      payloads: the values that are bytes (kinds from TEXT on).
    """

    series: Sequence[Series]
    index: Int32s
    times_ms: Int64s
    in_ms: Bools
    kinds: Bytes
    bits: Int64s
    arrivals_ms: Int64s
    origins: Origins | None = None
    payloads: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def floats(self) -> Floats:
        """float64[n]: the values as floats, integers above 2**53 rounded. Only for numbers."""
        is_float = self.kinds == Kind.FLOAT
        floats = self.bits.view(np.float64)
        if is_float.all():
            return floats
        integers = self.bits.astype(np.float64)
        return np.where(is_float, floats, integers) if is_float.any() else integers

    def take(self, indices: Int64s | slice) -> PointBatch:
        """The points at `indices`, with the same list of series; a slice gives views."""
        return PointBatch(
            self.series,
            self.index[indices],
            self.times_ms[indices],
            self.in_ms[indices],
            self.kinds[indices],
            self.bits[indices],
            self.arrivals_ms[indices],
            self.origins.take(indices) if self.origins else None,
            self.payloads,
        )

    def refuse(self, point: int, reason: Reason, message: str, stage: Stage) -> Rejected:
        """The refusal of one point, with its bytes, or with a line of JSON if the batch has no origins."""
        if self.origins is None:
            arrival_ms = int(self.arrivals_ms[point])
            return Rejected(self.as_json(point), reason, message, stage, arrival_ms=arrival_ms)
        rejected = self.origins.refuse(point, reason, message, stage)
        return dataclasses.replace(rejected, arrival_ms=int(self.arrivals_ms[point]))

    def points(self) -> Iterator[tuple[Series, int, int | float | str | bytes]]:
        """Each point as (series, time in ms, value): for tests and small outputs, not hot paths."""
        for i in range(len(self)):
            yield self.series[self.index[i]], int(self.times_ms[i]), self.value(i)

    def value(self, point: int) -> int | float | str | bytes:
        """The value of one point: for tests, small outputs and refusals."""
        kind, bits = self.kinds[point], self.bits[point]
        if kind == Kind.FLOAT:
            return float(bits.view(np.float64))
        if kind == Kind.INTEGER:
            return int(bits)
        payload = self.payloads[bits]
        return payload.decode() if kind == Kind.TEXT else payload

    def as_json(self, point: int) -> bytes:
        """One point as JSON: metric, timestamp (in the given unit, ms or s), value and tags.

        A value that is not a number becomes an object, and tags with resources become an object of both. A
        reader that expects only tags and numbers refuses such a point instead of reading another one.
        """
        series, value = self.series[self.index[point]], self.value(point)
        time_ms, tags = int(self.times_ms[point]), dict(series.tags)
        members: dict[str, object] = {
            "metric": series.metric,
            "timestamp": time_ms if self.in_ms[point] else time_ms // 1000,
            "value": value,
            "tags": {"tags": tags, "resources": dict(series.resources)} if series.resources else tags,
        }
        if isinstance(value, str):
            members["value"] = {"text": value}
        elif isinstance(value, bytes):
            members["value"] = {"hex": value.hex()}
        elif not math.isfinite(value):
            members["value"] = {"text": repr(value)}
        return json.dumps(members).encode()

    @classmethod
    def of(
        cls,
        points: Sequence[tuple[Series, int, bool, int | float | str | bytes]],
        arrival_ms: int,
        origins: Origins | None = None,
    ) -> PointBatch:
        """A batch from (series, time in ms, given in ms?, value) records; for small inputs.

        Raises:
          OverflowError: an integer value needs more than 64 bits.
        """
        numbers: dict[Series, int] = {}
        index = [numbers.setdefault(point[0], len(numbers)) for point in points]
        n = len(points)
        kinds = np.fromiter((_KIND_OF[type(point[3])] for point in points), np.uint8, n)
        bits = np.zeros(n, np.int64)
        floats = bits.view(np.float64)
        payloads: list[bytes] = []
        for i, (_, _, _, value) in enumerate(points):
            if isinstance(value, float):
                floats[i] = value
            elif isinstance(value, int):
                bits[i] = value
            else:
                bits[i] = len(payloads)
                payloads.append(value.encode() if isinstance(value, str) else value)
        return cls(
            tuple(numbers),
            np.array(index, np.int32),
            np.fromiter((point[1] for point in points), np.int64, n),
            np.fromiter((point[2] for point in points), np.bool_, n),
            kinds,
            bits,
            np.full(n, arrival_ms, np.int64),
            origins,
            payloads,
        )


_KIND_OF = {
    int: Kind.INTEGER,
    float: Kind.FLOAT,
    str: Kind.TEXT,
    bytes: Kind.OPAQUE,
    HistogramBytes: Kind.HISTOGRAM,
}
