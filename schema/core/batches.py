"""Batches of points: made record by record, several as one, the points that count; runs, distinct numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int32s, Int64s, Kind, used_numbers
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


def selected(batch: PointBatch, chosen: Bools) -> PointBatch:
    """The chosen points of a batch, without series that have none of them."""
    batch = batch if chosen.all() else batch.take(np.flatnonzero(chosen))
    used, index = used_numbers(batch.index)
    if len(used) == len(batch.series):
        return batch
    series = tuple(batch.series[number] for number in used.tolist())
    return dataclasses.replace(batch, series=series, index=index.astype(np.int32))


def join(batches: Sequence[PointBatch], joined: Joined | None = None) -> PointBatch:
    """The points of several messages or rows as one batch, in order.

    Args:
      batches: one for each message of `joined`, with origins if it has points.
      joined: None for batches without origins.
    """
    positions = joined.starts.tolist() if joined else [0] * len(batches)
    pairs = zip(batches, positions, strict=True)
    placed = [(batch.origins, start) for batch, start in pairs if batch.origins is not None]
    if not placed:
        return _one_batch(batches, None)
    texts: list[bytes] = []
    end = 0
    for origin, start in placed:
        texts += (b"\n" * (start - end), origin.text)
        end = start + len(origin.text)
    spans = _spans_at([((origin.starts, origin.ends), start) for origin, start in placed])
    return _one_batch(batches, Origins(b"".join(texts), *spans, placed[-1][0].source, 0, joined))


def join_pieces(batches: Sequence[PointBatch], text: bytes, offset: int) -> PointBatch:
    """The points of batches as one, in order; their texts are pieces of `text`, at `offset` of its source."""
    batches = [batch for batch in batches if len(batch)]
    origins = [batch.origins for batch in batches if batch.origins is not None]
    if not batches or (len(batches) == 1 and origins[0].text is text):
        return batches[0] if batches else PointBatch.of([], 0)
    spans = _spans_at([((origin.starts, origin.ends), origin.offset - offset) for origin in origins])
    return _one_batch(batches, Origins(text, *spans, origins[0].source, offset))


def join_joined(batches: Sequence[PointBatch]) -> PointBatch:
    """The points of batches of joined messages as one, in order; each has origins with `joined`."""
    origins = [batch.origins for batch in batches if batch.origins is not None]
    starts = np.cumsum([0, *(len(origin.text) + 1 for origin in origins)]).tolist()
    placed = list(zip(origins, starts, strict=False))
    sources = [(origin.joined, start) for origin, start in placed if origin.joined is not None]
    joined = Joined(
        np.concatenate([source.starts + start for source, start in sources]),
        np.concatenate([source.arrivals_ms for source, _ in sources]),
        [envelope for source, _ in sources for envelope in source.envelopes],
        np.concatenate([source.offsets for source, _ in sources]),
    )
    spans = _spans_at([((origin.starts, origin.ends), start) for origin, start in placed])
    wholes = [(origin.wholes, start) for origin, start in placed if origin.wholes is not None]
    text = b"\n".join([origin.text for origin in origins])
    whole_spans = _spans_at(wholes) if wholes else None
    return _one_batch(batches, Origins(text, *spans, origins[0].source, 0, joined, whole_spans))


def _spans_at(placed: Sequence[tuple[Spans, int]]) -> Spans:
    """Spans in texts as spans in one that has each of these texts at a position."""
    starts = np.concatenate([spans[0] + position for spans, position in placed])
    return starts, np.concatenate([spans[1] + position for spans, position in placed])


def follows(earlier: PointBatch, later: PointBatch) -> bool:
    """Whether the text of one batch continues that of another one in its source."""
    first, second = earlier.origins, later.origins
    if first is None or second is None or first.joined or second.joined:
        return False
    return first.source == second.source and first.offset + len(first.text) == second.offset


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
