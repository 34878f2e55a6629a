"""Formats whose messages are read as a whole, many together, into columns of samples of cached series.

A subclass reads the text of joined messages into `Samples`. What the messages of one producer repeat are the
bytes of a series, so these are the keys of a cache: a series is parsed once.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np

from timebeam.schema.common.encodings import LARGEST
from timebeam.schema.common.histogram_series import SeriesPoint
from timebeam.schema.common.lru import LruCache
from timebeam.schema.common.simple_histogram import Histogram, encode
from timebeam.schema.common.wire_fields import PADDING, DamagedMessagesError, Fields
from timebeam.schema.messages.base import Framing, Message, MessageFormat, Parsed, joined_of, separated
from timebeam.schema.messages.rules import FIRST_MILLISECOND, LAST_MILLISECOND, Refusals, add_tag
from timebeam.schema.points import (
    Bytes,
    Int64s,
    Joined,
    Kind,
    Origins,
    PointBatch,
    Reason,
    RefusedError,
    Rejected,
    Series,
)

Outcome = Series | RefusedError
"""What the bytes of a series stand for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """n samples of k series.

    Attributes:
      outcomes: of each series; equal series are one object (`SeriesCache`), which may be there repeatedly.
      index: int64[n], the number of each sample's series.
      times_ms: int64[n].
      kinds, bits: uint8[n], int64[n], as in `PointBatch`.
      starts, ends: int64[n], the span of the record that each sample is in; it can be ingested alone.
      refusals: (a span, why) of records that are refused as a whole.
      payloads: as in `PointBatch`.
    """

    outcomes: Sequence[Outcome]
    index: Int64s
    times_ms: Int64s
    kinds: Bytes
    bits: Int64s
    starts: Int64s
    ends: Int64s
    refusals: Sequence[tuple[int, int, RefusedError]] = ()
    payloads: Sequence[bytes] = ()

    @classmethod
    def join(cls, groups: Sequence[Samples]) -> Samples:
        """The samples of several groups, in the order of their bytes."""
        groups = [group for group in groups if len(group.index) or group.refusals]
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
            sorted((refusal for group in groups for refusal in group.refusals), key=lambda each: each[:2]),
            [payload for group in groups for payload in group.payloads],
        )

    def take(self, chosen: Int64s) -> Samples:
        """Some of the samples."""
        names = ("index", "times_ms", "kinds", "bits", "starts", "ends")
        return dataclasses.replace(self, **{name: getattr(self, name)[chosen] for name in names})


CACHED_BYTES = 4096
"""Longer keys are cached by their digest, and longer series not at all: a message can be of 64 MiB."""


def bounded_key(text: bytes) -> Hashable:
    """A key of a cache that stands for a text: itself, or its digest."""
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
    size = len(key) if isinstance(key, bytes) else 0
    size += sum(len(each) for each in key if isinstance(each, bytes)) if isinstance(key, tuple) else 0
    if isinstance(outcome, RefusedError):
        return size + len(outcome.message)
    return size + len(outcome.metric) + sum(len(a) + len(b) for a, b in (*outcome.tags, *outcome.resources))


UNPACKED_BYTES = 256 << 20
"""Memory for the points and series of histograms read together: a byte of a message can be one."""

_POINT_BYTES, _SERIES_BYTES = 100, 1000


class TooManyPointsError(Exception):
    """The histograms of messages that are read together become points of more than `UNPACKED_BYTES`."""


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
        self._refusals: list[tuple[int, int, RefusedError]] = []

    def add(self, base: Outcome, time_ms: int, points: Iterable[SeriesPoint], span: tuple[int, int]) -> None:
        """Adds the points of series made of `base`, of the record with this span.

        Raises:
          RefusedError: an integer needs more than 64 bits, or a histogram has too many buckets.
          TooManyPointsError: there is no room for them.
        """
        values = list(points)  # all of them or, if that raises, none
        payload_count = len(self._payloads)
        for each in values:
            if isinstance(each.value, int) and not -(1 << 63) <= each.value < 1 << 63:
                raise RefusedError(Reason.NUMBER_OUT_OF_RANGE, "a count that needs more than 64 bits")
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
        if len(self._index) * _POINT_BYTES + len(self._outcomes) * _SERIES_BYTES > UNPACKED_BYTES:
            raise TooManyPointsError

    def _add(self, kind: Kind, integer: int, double: float) -> None:
        self._kinds.append(kind)
        self._integers.append(integer)
        self._doubles.append(double)

    def refuse(self, why: RefusedError, span: tuple[int, int]) -> None:
        """Adds the refusal of a record."""
        self._refusals.append((*span, why))

    def finish(self) -> Samples:
        """What was gathered."""
        counts, *spans = np.array(self._records, np.int64).reshape(-1, 4).T
        times_ms, starts, ends = (np.repeat(column, counts) for column in spans)
        kinds = np.frombuffer(self._kinds, np.uint8)
        doubles = np.frombuffer(self._doubles, np.int64)
        bits = np.where(kinds == Kind.FLOAT, doubles, np.frombuffer(self._integers, np.int64))
        index = np.frombuffer(self._index, np.int64)
        return Samples(
            self._outcomes, index, times_ms, kinds, bits, starts, ends, self._refusals, self._payloads
        )


def _derived(base: Series, suffix: str, tag: tuple[str, str] | None, _: int) -> Outcome:
    """A series with a longer metric, and perhaps one more tag."""
    tags = dict(base.tags)
    try:
        if tag is not None:
            add_tag(tags, *tag)
    except RefusedError as error:
        return error
    return Series.of(base.metric + suffix, tags, dict(base.resources))


class WholeFormat(MessageFormat):
    """A format of messages that are read as a whole; a damaged one is refused as a whole."""

    framing = Framing.NONE

    def __init__(self, remembered: int) -> None:
        """`remembered`: the number of cached series."""
        self._series = SeriesCache(remembered)
        self._histogram_counts = 0, 0  # see `Parsed.histograms`

    def plain(self, text: bytes) -> bytes:
        """The text of a message, unpacked.

        Raises:
          RefusedError: it is damaged.
        """
        return text

    def split(self, message: Message) -> Iterator[Message]:
        """A message, or those that are lines of it."""
        yield message

    @abc.abstractmethod
    def samples(self, padded: bytes, starts: Int64s, ends: Int64s, skipped: Counter[str]) -> Samples:
        """The samples of messages.

        Args:
          padded: the joined texts and `PADDING`.
          starts, ends: int64[m], the span of each message.
          skipped: counts what is left out, see `Parsed`.

        Raises:
          DamagedMessagesError: some messages are damaged.
        """

    def parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`; offsets count in the unpacked text. `parse_all` reads longer ones."""
        parsed, *rest = self.parse_all([message])
        if not rest:
            return parsed
        why = RefusedError(Reason.CORRUPT_MESSAGE, f"lines of more than {LARGEST} bytes unpacked")
        return Parsed(PointBatch.of([], message.arrival_ms), [_refused(message, why)])

    def parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """See `MessageFormat.parse_all`; messages are read together, up to 64 MiB of them unpacked."""
        refused: list[Rejected] = []
        plain: list[Message] = []
        size = 0
        for message in messages:
            unpacked: list[Message] = []
            for record in self.split(message):
                try:
                    unpacked.append(dataclasses.replace(record, text=self.plain(record.text)))
                except RefusedError as error:
                    refused.append(_refused(record, error))
            added = sum(len(record.text) for record in unpacked)
            if plain and size + added > LARGEST:
                yield from self._parse_plain(plain, refused)
                refused, plain, size = [], [], 0
            plain += unpacked
            size += added
        yield from self._parse_plain(plain, refused)

    def _parse_plain(self, plain: list[Message], refused: list[Rejected]) -> Iterator[Parsed]:
        """What unpacked messages hold, fewer together if there is no room, and refusals of others."""
        try:
            parsed = self._parse_together(plain, refused)
        except TooManyPointsError:
            if len(plain) == 1:
                why = f"histograms that become points of more than {UNPACKED_BYTES} bytes: send fewer at once"
                error = RefusedError(Reason.CORRUPT_MESSAGE, why)
                parsed = self._parse_together([], [*refused, _refused(plain[0], error)])
            else:
                half = len(plain) // 2
                yield from self._parse_plain(plain[:half], refused)
                yield from self._parse_plain(plain[half:], [])
                return
        yield parsed

    def _parse_together(self, plain: list[Message], refused: list[Rejected]) -> Parsed:
        """As `_parse_plain`, of all messages at once; raises TooManyPointsError."""
        source = plain[0].source if plain else ""
        while True:  # once, and once more for each level of a message that can be damaged
            joined = joined_of(plain)
            text = b"\n".join([message.text for message in plain])
            ends = joined.starts + [len(message.text) for message in plain]
            skipped: Counter[str] = Counter()
            self._histogram_counts = 0, 0
            try:
                samples = self.samples(text + PADDING, joined.starts, ends.astype(np.int64), skipped)
                break
            except DamagedMessagesError as error:
                damaged = set((np.searchsorted(joined.starts, error.positions, "right") - 1).tolist())
                why = RefusedError(Reason.CORRUPT_MESSAGE, str(error))
                refused = [*refused, *(_refused(plain[number], why) for number in sorted(damaged))]
                plain = [message for number, message in enumerate(plain) if number not in damaged]
        parsed = self._parsed(Message(text, 0, source), samples, joined)
        return Parsed(parsed.batch, [*refused, *parsed.rejected], (), skipped, self._histogram_counts)

    def _parsed(self, message: Message, samples: Samples, joined: Joined) -> Parsed:
        """The good samples as points, and the refusals of the others."""
        refusals = Refusals(message, joined)
        for start, end, why in samples.refusals:
            refusals.add(start, end, why)
        in_range = (samples.times_ms >= FIRST_MILLISECOND) & (samples.times_ms <= LAST_MILLISECOND)
        finite = np.isfinite(samples.bits.view(np.float64)) | (samples.kinds != Kind.FLOAT)
        good = in_range & finite
        if RefusedError in set(map(type, samples.outcomes)):
            is_series = np.array([isinstance(outcome, Series) for outcome in samples.outcomes], np.bool_)
            good &= is_series[samples.index]
        if not good.all():
            _refuse(samples, np.flatnonzero(~good), refusals)
            samples = samples.take(np.flatnonzero(good))
        return separated(
            Parsed(self._batch(message, samples, all_used=bool(good.all())), refusals.rejected()), joined
        )

    def _batch(self, message: Message, samples: Samples, *, all_used: bool) -> PointBatch:
        """Good samples as a batch; each series once, and none without points."""
        outcomes, index = samples.outcomes, samples.index
        if not all_used or len(index) < len(outcomes):
            used = np.flatnonzero(np.bincount(index, minlength=1)) if len(index) else index
            rank = np.zeros(len(outcomes), np.int64)
            rank[used] = np.arange(len(used))
            outcomes, index = [outcomes[number] for number in used.tolist()], rank[index]
        keys: Sequence[Hashable] = outcomes if self._series.has_dropped else list(map(id, outcomes))
        distinct = dict(zip(keys, outcomes, strict=True))
        if len(distinct) < len(outcomes):
            rank_of = {key: number for number, key in enumerate(distinct)}
            index = np.array([rank_of[key] for key in keys], np.int64)[index]
            outcomes = list(distinct.values())
        n = len(index)
        return PointBatch(
            tuple(outcomes),  # type: ignore[arg-type]
            index.astype(np.int32),
            samples.times_ms,
            np.ones(n, np.bool_),
            samples.kinds,
            samples.bits,
            np.zeros(n, np.int64),
            Origins(message.text, samples.starts, samples.ends, message.source, 0),
            samples.payloads,
        )


def field_bytes(padded: bytes, fields: Fields, n: int) -> list[bytes]:
    """The bytes of the fields of each of n messages."""
    counts = np.bincount(fields.message, minlength=n)
    last = np.cumsum(counts)
    first = last - counts
    sizes = np.concatenate([[0], np.cumsum(fields.ends - fields.starts)])
    if n and counts.all():
        starts, ends = fields.starts[first], fields.ends[last - 1]
        if ((ends - starts) == sizes[last] - sizes[first]).all():
            return [padded[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    pieces = [padded[a:b] for a, b in zip(fields.starts.tolist(), fields.ends.tolist(), strict=True)]
    return [b"".join(pieces[a:b]) for a, b in zip(first.tolist(), last.tolist(), strict=True)]


def check_time(time_ms: int) -> RefusedError:
    """Why a time in ms is refused."""
    if time_ms <= 0:
        return RefusedError(Reason.BAD_TIMESTAMP, f"Invalid timestamp {time_ms} ms: it must be above 0")
    return RefusedError(
        Reason.TIMESTAMP_OUT_OF_RANGE,
        f"time {time_ms} ms is not from 1970-02-19 to 2106-02-07; is the unit right?",
    )


def _refused(message: Message, why: RefusedError) -> Rejected:
    """The refusal of a whole message."""
    refusals = Refusals(message)
    refusals.add(0, len(message.text), why)
    (rejected,) = refusals.rejected()
    return dataclasses.replace(rejected, arrival_ms=message.arrival_ms, envelope=message.envelope)


def _refuse(samples: Samples, points: Int64s, refusals: Refusals) -> None:
    """Adds one refusal for each record and reason: the first message, and how many points it stands for."""
    gathered: dict[tuple[int, Reason], tuple[int, RefusedError, int]] = {}
    for point in points.tolist():
        outcome, time_ms = samples.outcomes[samples.index[point]], int(samples.times_ms[point])
        if isinstance(outcome, RefusedError):
            why = outcome
        elif not FIRST_MILLISECOND <= time_ms <= LAST_MILLISECOND:
            why = check_time(time_ms)
        else:
            number = float(samples.bits[point : point + 1].view(np.float64)[0])
            why = RefusedError(
                Reason.BAD_NUMBER, f"value is NaN or Infinite: {number} of {str(outcome)[:200]}"
            )
        key = int(samples.starts[point]), why.reason
        end, first, count = gathered.get(key, (int(samples.ends[point]), why, 0))
        gathered[key] = end, first, count + 1
    for (start, _), (end, why, count) in gathered.items():
        refusals.add(start, end, why, count)
