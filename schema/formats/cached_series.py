"""Columns of samples of cached series, as formats of whole messages read them.

What the messages of one producer repeat are the bytes of a series, so these are the keys of a cache: a series
is parsed once.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, Kind
from timebeam.schema.bits.lru_cache import CACHED_BYTES, LruCache
from timebeam.schema.bits.memory_limit import POINT_BYTES, charge, charge_series, text_bytes
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.histograms import Histogram, SeriesPoint, encode
from timebeam.schema.core.points import Series, add_tag
from timebeam.schema.core.rejections import Spans

Outcome = Series | RejectedError
"""What the bytes of a series stand for."""

Rejection = tuple[int, int, RejectedError]
"""The span of a record that is rejected, and why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """n samples of k series.

    Attributes:
      outcomes: of each series; equal series are one object (`SeriesCache`), which may be there repeatedly.
      index: int64[n], the number of each sample's series.
      times_ms: int64[n].
      kinds, bits: uint8[n], int64[n], as in `PointBatch`.
      starts, ends: int64[n], the span of the record that each sample is in.
      rejections: (a span, why) of records that are rejected as a whole.
      payloads: as in `PointBatch`.
      wholes: as in `Origins`.
    """

    outcomes: Sequence[Outcome]
    index: Int64s
    times_ms: Int64s
    kinds: Bytes
    bits: Int64s
    starts: Int64s
    ends: Int64s
    rejections: Sequence[Rejection] = ()
    payloads: Sequence[bytes] = ()
    wholes: Spans | None = None

    @classmethod
    def join(cls, groups: Sequence[Samples]) -> Samples:
        """The samples of several groups, in the order of their bytes, without `wholes`."""
        groups = [group for group in groups if len(group.index) or group.rejections]
        if len(groups) == 1:
            return groups[0]
        sizes = np.cumsum([0, *(len(group.outcomes) for group in groups)]).tolist()
        payload_counts = np.cumsum([0, *(len(group.payloads) for group in groups)]).tolist()
        groups = [
            dataclasses.replace(group, bits=group.bits + (group.kinds >= Kind.TEXT) * count)
            for group, count in zip(groups, payload_counts, strict=False)
        ]
        none = [np.zeros(0, np.int64)]
        index = np.concatenate(
            [group.index + size for group, size in zip(groups, sizes, strict=False)] or none
        )
        columns = [
            np.concatenate([getattr(group, name) for group in groups] or none)
            for name in ("times_ms", "kinds", "bits", "starts", "ends")
        ]
        order = np.argsort(columns[3], kind="stable")
        times_ms, kinds, bits, starts, ends = (column[order] for column in columns)
        return cls(
            [outcome for group in groups for outcome in group.outcomes],
            index[order],
            times_ms,
            kinds.astype(np.uint8),
            bits,
            starts,
            ends,
            sorted(
                (rejection for group in groups for rejection in group.rejections), key=lambda each: each[:2]
            ),
            [payload for group in groups for payload in group.payloads],
        )

    def are_finite(self) -> Bools:
        """bool[n]: whether each sample is neither NaN nor infinite."""
        return np.isfinite(self.bits.view(np.float64)) | (self.kinds != Kind.FLOAT)

    def take(self, chosen: Int64s) -> Samples:
        """Some of the samples."""
        names = ("index", "times_ms", "kinds", "bits", "starts", "ends")
        return dataclasses.replace(self, **{name: getattr(self, name)[chosen] for name in names})


def bounded_key(text: bytes) -> Hashable:
    """A key of a cache that stands for a text: itself, or the digest of a long one."""
    return text if len(text) <= CACHED_BYTES else hashlib.sha256(text).hexdigest()


class SeriesCache:
    """What the bytes of series stand for: between `size` and twice as many of the latest ones."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._new: dict[Hashable, Outcome] = {}
        self._old: dict[Hashable, Outcome] = {}
        self._series: LruCache[Series, Series] = LruCache(4 * size)
        self._has_long = False

    @property
    def has_dropped(self) -> bool:
        """Whether two equal series may be two objects."""
        return self._series.full or self._has_long

    def outcomes(self, keys: Sequence[Hashable], read: Callable[[int], Outcome]) -> list[Outcome]:
        """What each key stands for; equal series are one object.

        Args:
          read: reads what the key of a number stands for.
        """
        outcomes: list[Outcome] = self.known(keys)  # type: ignore[assignment]
        if None in outcomes:
            for number, outcome in enumerate(outcomes):
                if outcome is None:
                    outcomes[number] = self.outcome(keys[number], read, number)
        return outcomes

    def known(self, keys: Sequence[Hashable]) -> list[Outcome | None]:
        """What each key stands for; None if it is not among the latest."""
        return list(map(self._new.get, keys))

    def outcome(self, key: Hashable, read: Callable[[int], Outcome], number: int = 0) -> Outcome:
        """As `outcomes`, for one key."""
        outcome = self._new.get(key)
        if outcome is None:
            outcome = self._old.get(key)
            if outcome is None:
                outcome = read(number)
                if _size(key, outcome) > CACHED_BYTES:
                    self._has_long = True
                    return outcome
                if isinstance(outcome, Series):
                    self._series[outcome] = outcome = self._series.get(outcome) or outcome
                else:
                    outcome.with_traceback(None)  # whose frames hold the message
            if len(self._new) >= self._size:
                self._old, self._new = self._new, {}
            self._new[key] = outcome
        return outcome


def _size(key: Hashable, outcome: Outcome) -> int:
    """About the bytes of a key and what it stands for."""
    size = len(key) if isinstance(key, bytes | str) else 0
    size += sum(len(each) for each in key if isinstance(each, bytes)) if isinstance(key, tuple) else 0
    if isinstance(outcome, RejectedError):
        return size + len(outcome.message)
    return size + len(outcome.metric) + text_bytes(outcome.tags + outcome.resources)


class SampleGatherer:
    """Gathers samples one by one: for histograms, and other records that are rare."""

    def __init__(self, cache: SeriesCache, histogram_id: int = 0) -> None:
        """`histogram_id`: that of the codec of histograms that are points by themselves."""
        self._cache, self._histogram_id = cache, histogram_id
        self._payloads: list[bytes] = []
        self._numbers: dict[int, int] = {}
        self._outcomes: list[Outcome] = []
        self._index, self._integers, self._doubles = array("q"), array("q"), array("d")
        self._kinds = bytearray()
        self._records: list[tuple[int, int, int, int]] = []  # (points, time, start, end)
        self._rejections: list[Rejection] = []

    def add(self, base: Outcome, time_ms: int, points: Iterable[SeriesPoint], span: tuple[int, int]) -> None:
        """Adds the points of series made of `base`, of the record with this span.

        Raises:
          RejectedError: an integer needs more than 64 bits, or a histogram has too many buckets.
          NoRoomError: there is no room for them.
        """
        values = list(points)  # all of them or, if that raises, none
        charge(len(values) * POINT_BYTES)
        payload_count = len(self._payloads)
        for each in values:
            if isinstance(each.value, int) and not -(1 << 63) <= each.value < 1 << 63:
                raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, "a count that needs more than 64 bits")
            if isinstance(each.value, Histogram):
                self._payloads.append(encode(each.value, self._histogram_id))
        for suffix, tag, value in values:
            outcome = base
            if isinstance(base, Series) and (suffix or tag):
                derived = functools.partial(_derived, base, suffix, tag)
                outcome = self._cache.outcome((base, suffix, tag), derived)
            number = self._numbers.setdefault(id(outcome), len(self._outcomes))
            if number == len(self._outcomes):
                self._outcomes.append(outcome)
            self._index.append(number)
            if isinstance(value, Histogram):
                self._add(Kind.HISTOGRAM, payload_count, 0.0)
                payload_count += 1
            elif isinstance(value, float):
                self._add(Kind.FLOAT, 0, value)
            else:
                self._add(Kind.INTEGER, value, 0.0)
        self._records.append((len(values), time_ms, *span))

    def _add(self, kind: Kind, integer: int, double: float) -> None:
        self._kinds.append(kind)
        self._integers.append(integer)
        self._doubles.append(double)

    def reject(self, why: RejectedError, span: tuple[int, int]) -> None:
        """Adds the rejection of a record."""
        self._rejections.append((*span, why.with_traceback(None)))

    def finish(self) -> Samples:
        """What was gathered."""
        counts, *spans = np.array(self._records, np.int64).reshape(-1, 4).T
        times_ms, starts, ends = (np.repeat(column, counts) for column in spans)
        kinds = np.frombuffer(self._kinds, np.uint8)
        doubles = np.frombuffer(self._doubles, np.int64)
        bits = np.where(kinds == Kind.FLOAT, doubles, np.frombuffer(self._integers, np.int64))
        index = np.frombuffer(self._index, np.int64)
        return Samples(
            self._outcomes, index, times_ms, kinds, bits, starts, ends, self._rejections, self._payloads
        )


def _derived(base: Series, suffix: str, tag: tuple[str, str] | None, _: int) -> Outcome:
    """A series with a longer metric, and perhaps one more tag."""
    charge_series(len(base.metric) + text_bytes(base.tags + base.resources), len(base.tags) + 1)
    tags = dict(base.tags)
    try:
        if tag is not None:
            add_tag(tags, *tag)
    except RejectedError as error:
        return error
    return Series.of(base.metric + suffix, tags, dict(base.resources))
