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
from collections.abc import Callable, Iterator, Mapping, Sequence
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


_MESSAGE_CHARACTERS = 1000


def shortened(message: str) -> str:
    """At most 1,000 characters of a message, its beginning and end: it may quote names of megabytes."""
    if len(message) <= _MESSAGE_CHARACTERS:
        return message
    half = _MESSAGE_CHARACTERS // 2
    return f"{message[: half - 1]} … {message[2 - half :]}"


class RefusedError(ValueError):
    """A refused record, with a stable reason and a message that says what to do."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.reason = reason
        self.message = shortened(message)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[type[RefusedError], tuple[Reason, str]]:
        """Pickles both arguments, since an exception pickles only its message."""
        return RefusedError, (self.reason, self.message)


class Envelope(NamedTuple):
    """What Pub/Sub knows about a message beside its payload."""

    message_id: str
    publish_ms: int
    attributes: Mapping[str, str]


Records = tuple[tuple[int, int], ...]
"""Spans of records: (offset, length) of each; see `Rejected.records`."""


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
      records: (offset, length) in the whole payload of the refused records, or of runs of them; empty if all
        are refused. In a payload of format `parquet`: (number of the first row, rows).
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
    records: Records = ()
    part: Part | None = None


MOST_RECORDS = 1000
"""Spans of refused records that a refusal lists."""


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

    def numbers_at(self, starts: Int64s) -> Int64s:
        """int64[n]: the number of the message at each of the positions `starts` int64[n]."""
        return np.searchsorted(self.starts, starts, "right") - 1

    def arrivals_at(self, starts: Int64s) -> Int64s:
        """int64[n]: the arrival of the message at each of the positions `starts` int64[n]."""
        return self.arrivals_ms[self.numbers_at(starts)]

    def number_at(self, start: int) -> int:
        """The number of the message at a position of the text."""
        return int(np.searchsorted(self.starts, start, "right")) - 1

    def addressed(self, rejected: Rejected) -> Rejected:
        """Converts the offset of a refusal from the joined text to its own message."""
        index = self.number_at(rejected.offset)
        return dataclasses.replace(
            rejected,
            offset=rejected.offset - int(self.starts[index]) + int(self.offsets[index]),
            arrival_ms=int(self.arrivals_ms[index]),
            envelope=self.envelopes[index],
        )


Spans = tuple[Int64s, Int64s]
"""(starts, ends) int64[k] in a text, ascending."""


@dataclasses.dataclass(frozen=True, slots=True)
class Origins:
    """The bytes that the points of a batch were read from.

    Attributes:
      text: of the whole block or message, or of several joined messages.
      starts, ends: int64[n], the span of the record of each point in `text`.
      source: file path or subscription.
      offset: byte offset of `text` in the (decompressed) source; 0 if messages were joined.
      joined: the joined messages; None for a single one.
      wholes: what the records in it cannot be read without; a record outside can be read alone.
    """

    text: bytes
    starts: Int64s
    ends: Int64s
    source: str
    offset: int
    joined: Joined | None = None
    wholes: Spans | None = None

    def take(self, indices: Int64s | slice) -> Origins:
        """The origins of a selection of points."""
        return dataclasses.replace(self, starts=self.starts[indices], ends=self.ends[indices])

    def refuse(
        self, points: Int64s, why: Callable[[int], RefusedError], stage: Stage, arrivals_ms: Int64s
    ) -> list[Rejected]:
        """The refusals of points: one for all that a payload holds and one reason refuses.

        Args:
          why: says why a point is refused, by its number.
          arrivals_ms: int64[n], of all points.
        """
        starts, ends = self.starts[points], self.ends[points]
        refusals = []
        for start, end, error, group in grouped(starts, ends, self.wholes, points, why):
            rejected = Rejected(
                self.text[start:end],
                error.reason,
                error.message,
                stage,
                self.source,
                self.offset + start,
                points=len(group),
                records=records_of(starts[group], ends[group], (start, end)),
            )
            rejected = self.joined.addressed(rejected) if self.joined else rejected
            arrival_ms = int(arrivals_ms[points[group[0]]])
            refusals.append(dataclasses.replace(rejected, arrival_ms=arrival_ms))
        return refusals


def grouped(
    starts: Int64s,
    ends: Int64s,
    wholes: Spans | None,
    numbers: Int64s,
    why: Callable[[int], RefusedError],
) -> list[tuple[int, int, RefusedError, Int64s]]:
    """(start and end of a payload, the first error, which of the records) by payload and reason.

    Args:
      starts, ends: int64[n], the spans of refused records.
      wholes: see `Origins`.
      numbers: int64[n], what `why` is asked for each of them.
    """
    if wholes is not None and len(wholes[0]):
        whole_number = np.searchsorted(wholes[0], starts, "right") - 1
        is_inside = (whole_number >= 0) & (starts < wholes[1][whole_number])
        starts = np.where(is_inside, wholes[0][whole_number], starts)
        ends = np.where(is_inside, wholes[1][whole_number], ends)
    groups: dict[tuple[int, Reason], tuple[int, RefusedError, list[int]]] = {}
    for place, (start, end, number) in enumerate(
        zip(starts.tolist(), ends.tolist(), numbers.tolist(), strict=True)
    ):
        error = why(number)
        groups.setdefault((start, error.reason), (end, error, []))[2].append(place)
    return [
        (start, end, error, np.array(places, np.int64)) for (start, _), (end, error, places) in groups.items()
    ]


def records_of(starts: Int64s, ends: Int64s, payload: tuple[int, int]) -> Records:
    """(offset, length) of records in their payload, those that touch each other as one; see `Rejected`.

    Of more than `MOST_RECORDS` the last one reaches to the end of all, so that none is missing.

    Args:
      starts, ends: int64[n], in any order; n is not 0.
    """
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order] - payload[0], np.maximum.accumulate(ends[order]) - payload[0]
    is_first = np.append(True, starts[1:] > ends[:-1])
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(starts)) - 1
    begins, stops = starts[firsts][:MOST_RECORDS], ends[lasts][:MOST_RECORDS]
    stops[-1] = ends[-1] if len(firsts) > MOST_RECORDS else stops[-1]
    if (int(begins[0]), int(stops[-1])) == (0, payload[1] - payload[0]) and len(begins) == 1:
        return ()
    return tuple(zip(begins.tolist(), (stops - begins).tolist(), strict=True))


def is_listed(starts: Int64s, records: Records) -> Bools:
    """bool[n]: whether a record at each of the positions `starts` int64[n] of a payload is listed."""
    spans = np.array(sorted(records), np.int64).reshape(-1, 2)
    place = np.searchsorted(spans[:, 0], starts, "right") - 1
    return (place >= 0) & (starts < (spans[:, 0] + spans[:, 1])[place])


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

    def refuse(self, points: Int64s, why: Callable[[int], RefusedError], stage: Stage) -> list[Rejected]:
        """The refusals of points: one for all that a payload holds and one reason refuses (`Origins.refuse`).

        Args:
          why: says why a point is refused, by its number.

        Returns:
          Without origins: one for each point, with a line of JSON.
        """
        if self.origins is not None:
            return self.origins.refuse(points, why, stage, self.arrivals_ms)
        reasons = [(point, why(point)) for point in points.tolist()]
        return [
            Rejected(
                self.as_json(point),
                error.reason,
                error.message,
                stage,
                arrival_ms=int(self.arrivals_ms[point]),
            )
            for point, error in reasons
        ]

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

        >>> series = Series.of("sys.cpu", {"host": "a"})
        >>> points = [(series, 1356998400_000, False, 42), (series, 1356998401_500, True, 0.5)]
        >>> batch = PointBatch.of(points, arrival_ms=9000)
        >>> batch.index.tolist(), batch.times_ms.tolist(), batch.in_ms.tolist(), batch.kinds.tolist()
        ([0, 0], [1356998400000, 1356998401500], [False, True], [0, 1])
        >>> [hex(bits) for bits in batch.bits.tolist()]
        ['0x2a', '0x3fe0000000000000']

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
