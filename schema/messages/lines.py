"""The columnar reader of formats whose records are lines with one timestamp and one value each.

Per point it only finds two numbers; what is left of the line (its skeleton) is the cache key of the
series. A skeleton's first line is parsed in full by the format, with other numbers put in the two
places: that proves that these places hold the timestamp and the value, so that every later line
with the same skeleton is as good. Lines that do not fit go one by one to the format's slow path.
"""

from __future__ import annotations

import abc
import dataclasses

import numpy as np
import pyarrow as pa

from timebeam.schema.common.lru import LruCache
from timebeam.schema.messages import columns
from timebeam.schema.messages.linewise import Columns, LinewiseFormat, Record
from timebeam.schema.messages.rules import FIRST_MILLISECOND, LAST_MILLISECOND
from timebeam.schema.points import Bools, Bytes, Int64s, RefusedError, Series

__all__ = ["LineFormat", "Places", "Record"]

Skeleton = tuple[bytes, bytes, bytes]

_PROBE_TIME = 1_987_654_321
_PROBE_VALUE = 4_815_162_342
_PROBE_MARKS = (b"%d" % _PROBE_TIME, b"%d" % _PROBE_VALUE, b"\\u003")  # and digits as JSON escapes


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Where the numbers of n lines begin: byte positions int64[n], and whether both were found."""

    times: Int64s
    values: Int64s
    is_located: Bools


class _Odd:
    """Stands for a skeleton whose lines must take the slow path."""


_ODD = _Odd()


class LineFormat(LinewiseFormat):
    """A format read by the columnar reader; a subclass locates the numbers and parses one line."""

    def __init__(self, skeletons: int = 200_000) -> None:
        self._skeletons: LruCache[Skeleton, Series | _Odd] = LruCache(skeletons)
        self._series: LruCache[Series, Series] = LruCache(skeletons)

    @abc.abstractmethod
    def locate(self, text: bytes, view: Bytes, starts: Int64s, ends: Int64s) -> Places:
        """Where each line's timestamp and value begin; a wrong place is found out later.

        Args:
          text: the bytes, with padding behind the last line (see `columns.padded`).
          view: the same as uint8.
          starts, ends: int64[n], the lines without their newline.
        """

    def columnar(self, text: bytes, starts: Int64s, ends: Int64s) -> tuple[Columns, Int64s]:
        """See `LinewiseFormat.columnar`; one point per line."""
        room = columns.padded(text)
        view = columns.byte_view(room)
        places = self.locate(room, view, starts, ends)
        window = columns.windows(room, places.values)
        lengths = columns.number_lengths(window)
        is_decimal, exponent = columns.decimals(window, lengths)
        time_lengths = columns.time_lengths(view, places.times)
        good = places.is_located & columns.regular(window, lengths, is_decimal, exponent) & (time_lengths > 0)
        time_first = places.times < places.values
        good &= places.times + time_lengths <= np.where(time_first, places.values, ends)
        mostly = bool(time_first[good].sum() * 2 >= good.sum())
        good &= time_first == mostly  # the rarer order of keys goes line by line
        lines = np.flatnonzero(good)
        if len(lines) == 0:
            return Columns.empty(), np.arange(len(starts))
        cuts = [places.times, places.times + time_lengths, places.values, places.values + lengths]
        if not mostly:
            cuts = cuts[2:] + cuts[:2]
        cuts = [starts, *cuts, ends]
        if len(lines) < len(starts):
            cuts = [cut[lines] for cut in cuts]
            is_decimal = is_decimal[lines]
        read_columns = self._read(text, room, cuts, mostly, is_decimal)
        fit = read_columns.series >= 0
        good[lines] = fit
        return (read_columns if fit.all() else read_columns.take(np.flatnonzero(fit))), np.flatnonzero(~good)

    def _read(
        self, text: bytes, room: bytes, cuts: list[Int64s], time_first: bool, is_decimal: Bools
    ) -> Columns:
        """Numbers and series of located lines; series -1 where the line is not to be trusted.

        Args:
          cuts: int64[n] six times: start, start and end of the first number, of the second one, end.
          time_first: whether the timestamp is the first of the two.
        """
        # The piece between two lines holds the newline, and whatever lines are left out.
        cut = columns.strings_between(text, *cuts)
        indexes = np.arange(len(cuts[0]), dtype=np.int64) * len(cuts)
        time_at, value_at = (indexes + 1, indexes + 3) if time_first else (indexes + 3, indexes + 1)
        times, good = columns.integers(cut.take(pa.array(time_at)))
        bits, kinds, parsed = columns.values(cut, value_at, is_decimal)
        in_ms = times >= FIRST_MILLISECOND
        good &= parsed & (times > 0) & (times <= LAST_MILLISECOND)
        cut = cut.view(pa.binary())
        between = columns.first_if_same(room, cuts[2], cuts[3])
        keys = [
            columns.distinct(cut, indexes),
            between or columns.distinct(cut, indexes + 2),
            columns.distinct(cut, indexes + 4),
        ]
        names, series = self._resolve(keys, time_first)
        series[~good] = -1
        times_ms = np.where(in_ms, times, times * 1000)
        return Columns(names, series, times_ms, in_ms, kinds, bits, cuts[0], cuts[5])

    def _resolve(
        self, keys: list[tuple[Int64s, list[bytes]]], time_first: bool
    ) -> tuple[list[Series], Int64s]:
        """The distinct series of lines cut into (before, between, after), and each line's number."""
        texts = [metric_text for _, metric_text in keys]
        sizes = [len(metric_text) for metric_text in texts]
        code = (keys[0][0] * sizes[1] + keys[1][0]) * sizes[2] + keys[2][0]
        if sizes[0] * sizes[1] * sizes[2] <= 4 * len(code) + 1024:
            used = np.flatnonzero(np.bincount(code, minlength=1))
            rank = np.zeros(int(used[-1]) + 1, np.int64)
            rank[used] = np.arange(len(used))
            inverse = rank[code]
        else:
            used, inverse = np.unique(code, return_inverse=True)
        numbers: dict[int, int] = {}  # by identity, since equal series are one object: see _series_of
        names: list[Series] = []
        number_of = []
        for line_number in used.tolist():
            rest, after = divmod(line_number, sizes[2])
            before, between = divmod(rest, sizes[1])
            series = self._series_of((texts[0][before], texts[1][between], texts[2][after]), time_first)
            number = -1 if series is None else numbers.setdefault(id(series), len(names))
            if series is not None and number == len(names):
                names.append(series)
            number_of.append(number)
        if self._series.full:  # a forgotten series and its successor are equal, yet two objects
            distinct: dict[Series, int] = {}
            renumber = [distinct.setdefault(series, len(distinct)) for series in names]
            names, number_of = list(distinct), [renumber[i] if i >= 0 else -1 for i in number_of]
        return names, np.array(number_of, np.int64)[inverse]

    def _series_of(self, skeleton: Skeleton, time_first: bool) -> Series | None:
        """The series of a skeleton, None if its lines must take the slow path; remembered."""
        cached = self._skeletons.get(skeleton)
        if cached is None:
            cached = self._probe(skeleton, time_first) or _ODD
            if isinstance(cached, Series):
                self._series[cached] = cached = self._series.get(cached) or cached
            self._skeletons[skeleton] = cached
        return cached if isinstance(cached, Series) else None

    def _probe(self, skeleton: Skeleton, time_first: bool) -> Series | None:
        """Parses a line of this skeleton with known numbers in its two places."""
        if any(mark in piece for piece in skeleton for mark in _PROBE_MARKS):
            return None  # the numbers found could be others than those in the two places
        numbers = [str(_PROBE_TIME).encode(), str(_PROBE_VALUE).encode()]
        if not time_first:
            numbers.reverse()
        line = skeleton[0] + numbers[0] + skeleton[1] + numbers[1] + skeleton[2]
        outcomes = [record.outcome for record in self.records(line, 0, len(line))]
        if len(outcomes) != 1 or isinstance(outcomes[0], RefusedError):
            return None
        series, time_ms, in_ms, value = outcomes[0]
        proven = (time_ms, in_ms, value) == (_PROBE_TIME * 1000, False, _PROBE_VALUE)
        return series if proven and isinstance(value, int) else None
