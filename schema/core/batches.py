"""Batches of points: made record by record, several as one, the points that count; runs, distinct numbers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from timebeam.schema.bits.arrays import Int32s, Int64s, Kind
from timebeam.schema.core.points import PointBatch, Series, Value, value_columns
from timebeam.schema.core.rejections import Joined, Origins, Spans


def distinct(values: Int64s) -> Int64s:
    """int64[m], strictly increasing: every value once.

    By sorting: np.unique of integers hashes since NumPy 2.3, 25 times slower for ten million times.
    """
    ordered = np.sort(values, kind="stable")
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    firsts: Int64s = ordered[is_first]
    return firsts


def run_starts(numbers: Int64s | Int32s) -> Int64s:
    """int64[r]: where each run of equal numbers begins, of at least one number."""
    return np.append(0, np.flatnonzero(numbers[1:] != numbers[:-1]) + 1)


def concatenate(first: PointBatch, second: PointBatch) -> PointBatch:
    """The points of two batches of one message, both with origins, in this order."""
    origins = _origins_of([first, second])
    starts, ends = _spans([(each, 0) for each in origins])
    return _one_batch([first, second], dataclasses.replace(origins[0], starts=starts, ends=ends))


def join(batches: Sequence[PointBatch], joined: Joined | None = None) -> PointBatch:
    """The points of several messages or rows as one batch, in order.

    Args:
      batches: one for each message of `joined`, with origins if it has points.
      joined: None for batches without origins.
    """
    places = joined.starts.tolist() if joined else [0] * len(batches)
    pairs = [
        (batch.origins, start)
        for batch, start in zip(batches, places, strict=True)
        if batch.origins is not None
    ]
    if not pairs:
        return _one_batch(batches, None)
    texts: list[bytes] = []
    end = 0
    for origin, start in pairs:
        texts += (b"\n" * (start - end), origin.text)
        end = start + len(origin.text)
    return _one_batch(batches, Origins(b"".join(texts), *_spans(pairs), pairs[-1][0].source, 0, joined))


def follows(earlier: PointBatch, later: PointBatch) -> bool:
    """Whether the text of one batch continues that of another one in its source."""
    first, second = earlier.origins, later.origins
    if first is None or second is None or first.joined or second.joined:
        return False
    return first.source == second.source and first.offset + len(first.text) == second.offset


def join_texts(batches: Sequence[PointBatch]) -> PointBatch:
    """The points of batches as one, in order; the text of each follows that of the one before (`follows`)."""
    origins = _origins_of(batches)
    positions = itertools.accumulate((len(origin.text) for origin in origins), initial=0)
    spans = _spans(list(zip(origins, positions, strict=False)))
    text = b"".join([origin.text for origin in origins])
    return _one_batch(batches, Origins(text, *spans, origins[0].source, origins[0].offset))


def latest_points(index: Int64s | Int32s, times_ms: Int64s, arrivals_ms: Int64s) -> Int64s:
    """int64[m]: the numbers of the points that count, ascending by series and time, each time once.

    The latest arrival wins; within one arrival, the last point.

    Args:
      index: int64[n], the number of each point's series.
    """
    order = np.lexsort((arrivals_ms, times_ms, index))
    index, times_ms = index[order], times_ms[order]
    is_last = np.append((index[1:] != index[:-1]) | (times_ms[1:] != times_ms[:-1]), True)
    return order[is_last[: len(order)]]


def join_joined(batches: Sequence[PointBatch]) -> PointBatch:
    """The points of batches of joined messages as one, in order; each has origins with `joined`."""
    origins = _origins_of(batches)
    sources = [origin.joined for origin in origins if origin.joined is not None]
    positions = np.cumsum([0, *(len(origin.text) + 1 for origin in origins)]).tolist()
    joined = Joined(
        np.concatenate([source.starts + start for source, start in zip(sources, positions, strict=False)]),
        np.concatenate([source.arrivals_ms for source in sources]),
        [envelope for source in sources for envelope in source.envelopes],
        np.concatenate([source.offsets for source in sources]),
    )
    shifted = [
        (origin.wholes[0] + start, origin.wholes[1] + start)
        for origin, start in zip(origins, positions, strict=False)
        if origin.wholes is not None
    ]
    wholes = None
    if shifted:
        wholes = np.concatenate([span[0] for span in shifted]), np.concatenate([span[1] for span in shifted])
    text = b"\n".join([origin.text for origin in origins])
    spans = _spans(list(zip(origins, positions, strict=False)))
    return _one_batch(batches, Origins(text, *spans, origins[0].source, 0, joined, wholes))


def _origins_of(batches: Sequence[PointBatch]) -> list[Origins]:
    """The origins of those batches that have some."""
    return [batch.origins for batch in batches if batch.origins is not None]


def _spans(placed: Sequence[tuple[Origins, int]]) -> Spans:
    """The spans of all records, of texts that begin at these positions of one text."""
    starts = np.concatenate([origin.starts + position for origin, position in placed])
    return starts, np.concatenate([origin.ends + position for origin, position in placed])


def _one_batch(batches: Sequence[PointBatch], origins: Origins | None) -> PointBatch:
    """The points of all batches, with these origins."""
    numbers: dict[Series, int] = {}
    indices: list[Int32s] = []
    bits: list[Int64s] = []
    payloads: list[bytes] = []
    for batch in batches:
        renumber = np.array([numbers.setdefault(series, len(numbers)) for series in batch.series], np.int32)
        indices.append(renumber[batch.index] if len(batch) else batch.index)
        is_payload = batch.kinds >= Kind.TEXT
        bits.append(np.where(is_payload, batch.bits + len(payloads), batch.bits) if payloads else batch.bits)
        payloads += batch.payloads
    return PointBatch(
        tuple(numbers),
        np.concatenate(indices),
        np.concatenate([batch.times_ms for batch in batches]),
        np.concatenate([batch.in_ms for batch in batches]),
        np.concatenate([batch.kinds for batch in batches]),
        np.concatenate(bits),
        np.concatenate([batch.arrivals_ms for batch in batches]),
        origins,
        payloads,
    )


class PointBuilder:
    """Points whose times are in ms, in the order of their records.

    >>> builder = PointBuilder(b"first second", arrival_ms=9000)
    >>> series = builder.number_of(Series.of("sys.cpu", {"host": "a"}))
    >>> builder.add_many(series, [1356998400_000, 1356998401_500], [42, 0.5], 0, 5)
    >>> builder.add(series, 1356998402_000, "text", 6, 12)
    >>> batch = builder.batch()
    >>> batch.times_ms.tolist(), batch.kinds.tolist(), batch.origins.starts.tolist()
    ([1356998400000, 1356998401500, 1356998402000], [0, 1, 2], [0, 0, 6])
    """

    def __init__(self, text: bytes, arrival_ms: int, source: str = "", offset: int = 0) -> None:
        """Gathers points whose spans are in a text, which begins at `offset` of its source."""
        self._text, self._arrival_ms, self._source, self._offset = text, arrival_ms, source, offset
        self._numbers: dict[Series, int] = {}
        self._times: list[int] = []
        self._values: list[Value] = []
        self._records: list[tuple[int, int, int, int]] = []  # (series, start, end, points)

    def __len__(self) -> int:
        return len(self._times)

    def number_of(self, series: Series) -> int:
        """The number of a series in the batch."""
        return self._numbers.setdefault(series, len(self._numbers))

    def add(self, series: int, time_ms: int, value: Value, start: int, end: int) -> None:
        """Adds a point of the record from `start` to `end`."""
        self._times.append(time_ms)
        self._values.append(value)
        self._records.append((series, start, end, 1))

    def add_many(
        self, series: int, times_ms: Sequence[int], values: Sequence[Value], start: int, end: int
    ) -> None:
        """Adds points of one series and one record."""
        self._times += times_ms
        self._values += values
        self._records.append((series, start, end, len(times_ms)))

    def batch(self) -> PointBatch:
        """All points.

        Raises:
          OverflowError: an integer value needs more than 64 bits.
        """
        n = len(self._times)
        records = np.array(self._records, np.int64).reshape(-1, 4)
        series, starts, ends = np.repeat(records[:, :3], records[:, 3], axis=0).T
        kinds, bits, payloads = value_columns(self._values)
        return PointBatch(
            tuple(self._numbers),
            series.astype(np.int32),
            np.array(self._times, np.int64),
            np.ones(n, np.bool_),
            kinds,
            bits,
            np.full(n, self._arrival_ms, np.int64),
            Origins(self._text, starts, ends, self._source, self._offset),
            payloads,
        )
