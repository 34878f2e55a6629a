"""Formats whose messages are read as a whole, many together; a corrupt one is rejected as a whole.

A subclass reads the text of joined messages into `Samples` (`timebeam.schema.formats.cached_series`).
"""

from __future__ import annotations

import abc
import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import compress

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s, used_numbers
from timebeam.schema.bits.compression import LARGEST
from timebeam.schema.bits.memory_limit import metered
from timebeam.schema.bits.protobuf_columns import PADDING, CorruptMessagesError
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, PointBatch, Series
from timebeam.schema.core.rejections import Joined, Origins, Rejected, grouped, is_listed, records_of
from timebeam.schema.formats.base import (
    NOT_FINITE,
    Framing,
    Message,
    MessageFormat,
    Parsed,
    Rejections,
    joined_message,
    joined_of,
    rejection,
    separated,
)
from timebeam.schema.formats.cached_series import Rejection, Samples, SeriesCache
from timebeam.schema.formats.options import DEFAULTS, FormatOptions


class WholeFormat(MessageFormat):
    """A format of messages that are read as a whole; a corrupt one is rejected as a whole."""

    framing = Framing.NONE

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        self._series = SeriesCache(options.remembered)
        self._histogram_counts = 0, 0  # see `Parsed.histograms`

    def plain(self, text: bytes) -> bytes:
        """The text of a message, unpacked.

        Raises:
          RejectedError: it is corrupt.
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
          CorruptMessagesError: some messages are corrupt.
        """

    def parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`; offsets count in the unpacked text. `parse_all` reads longer ones."""
        parsed, *rest = self.parse_all([message])
        if not rest:
            return parsed
        why = RejectedError(Reason.CORRUPT_MESSAGE, f"lines of more than {LARGEST} bytes unpacked")
        return Parsed(PointBatch.of([], message.arrival_ms), [_rejected(message, why)])

    def parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """See `MessageFormat.parse_all`; messages are read together, up to 64 MiB of them unpacked."""
        rejected: list[Rejected] = []
        plain: list[Message] = []
        size = 0
        for message in messages:
            unpacked: list[Message] = []
            for record in self.split(message):
                try:
                    with metered():
                        unpacked.append(dataclasses.replace(record, text=self.plain(record.text)))
                except Exception as error:  # see `MessageFormat.parse`
                    rejected.append(self._failure(record, error))
            added = sum(len(record.text) for record in unpacked)
            if plain and size + added > LARGEST:
                yield from self._parse_plain(plain, rejected)
                rejected, plain, size = [], [], 0
            plain += unpacked
            size += added
        yield from self._parse_plain(plain, rejected)

    def _parse_plain(self, plain: list[Message], rejected: list[Rejected]) -> Iterator[Parsed]:
        """What unpacked messages hold, and rejections of others."""
        for parsed in super().parse_all(plain):
            yield dataclasses.replace(parsed, rejected=[*rejected, *parsed.rejected])
            rejected = []

    def _parse(self, message: Message) -> Parsed:
        """As `_parse_all`, of one message."""
        return self._parse_all([message])[0]

    def _parse_all(self, plain: Sequence[Message]) -> list[Parsed]:
        """What unpacked messages hold, without those that are corrupt."""
        rejected: list[Rejected] = []
        while True:  # once, and once more for each level of a message that can be corrupt
            joined = joined_of(plain)
            text = joined_message(plain)
            ends = joined.starts + [len(message.text) for message in plain]
            skipped: Counter[str] = Counter()
            self._histogram_counts = 0, 0
            try:
                with metered():
                    samples = self.samples(text.text + PADDING, joined.starts, ends.astype(np.int64), skipped)
                break
            except CorruptMessagesError as error:
                corrupt = set((np.searchsorted(joined.starts, error.positions, "right") - 1).tolist())
                why = RejectedError(Reason.CORRUPT_MESSAGE, str(error))
                rejected = [*rejected, *(_rejected(plain[number], why) for number in sorted(corrupt))]
                plain = [message for number, message in enumerate(plain) if number not in corrupt]
        parsed = self._parsed(text, samples, joined, plain, skipped)
        return [Parsed(parsed.batch, [*rejected, *parsed.rejected], (), skipped, self._histogram_counts)]

    def _parsed(
        self,
        message: Message,
        samples: Samples,
        joined: Joined,
        plain: Sequence[Message],
        skipped: Counter[str],
    ) -> Parsed:
        """The good samples as points, and the rejections of the others; counts those that are skipped.

        Args:
          message: the joined texts of the messages `plain`, which may list the samples that are read.
        """
        listed = _listed(samples.starts, joined, plain)
        if listed is not None:
            samples = samples.take(np.flatnonzero(listed))
        finite = samples.are_finite()
        all_used = listed is None and bool(finite.all())
        if self.skips_nan and not finite.all():
            skipped[NOT_FINITE] += int(np.count_nonzero(~finite))
            samples, finite = samples.take(np.flatnonzero(finite)), finite[finite]
        in_range = (samples.times_ms >= FIRST_MILLISECOND) & (samples.times_ms <= LAST_MILLISECOND)
        good = in_range & finite
        if RejectedError in set(map(type, samples.outcomes)):
            is_series = np.array([isinstance(outcome, Series) for outcome in samples.outcomes], np.bool_)
            good &= is_series[samples.index]
        rejections = Rejections(message, joined, separator=b"")
        if samples.rejections or not good.all():
            starts = np.array([each[0] for each in samples.rejections], np.int64)
            listed = _listed(starts, joined, plain)
            records = list(samples.rejections if listed is None else compress(samples.rejections, listed))
            _reject(samples, np.flatnonzero(~good), rejections, records)
            all_used &= bool(good.all())
            samples = samples.take(np.flatnonzero(good))
        batch = self._batch(message, samples, all_used=all_used)
        return separated(Parsed(batch, rejections.rejected()), joined)

    def _batch(self, message: Message, samples: Samples, *, all_used: bool) -> PointBatch:
        """Good samples as a batch; each series once, and none without points."""
        outcomes, index = samples.outcomes, samples.index
        if not all_used or len(index) < len(outcomes):
            used, index = used_numbers(index)
            outcomes = [outcomes[number] for number in used.tolist()]
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
            Origins(message.text, samples.starts, samples.ends, message.source, 0, wholes=samples.wholes),
            samples.payloads,
        )


def _time_error(time_ms: int) -> RejectedError:
    if time_ms <= 0:
        return RejectedError(Reason.BAD_TIMESTAMP, f"Invalid timestamp {time_ms} ms: it must be above 0")
    return RejectedError(
        Reason.TIMESTAMP_OUT_OF_RANGE,
        f"time {time_ms} ms is not from 1970-02-19 to 2106-02-07; is the unit right?",
    )


def _rejected(message: Message, why: RejectedError) -> Rejected:
    """The rejection of a whole message."""
    rejected = rejection(message, 0, len(message.text), why.reason, why.message)
    return dataclasses.replace(rejected, records=message.records)


def _listed(starts: Int64s, joined: Joined, plain: Sequence[Message]) -> Bools | None:
    """bool[n]: the records at these positions that their messages list (`Message.records`); None for all."""
    if not any(message.records for message in plain):
        return None
    number = joined.numbers_at(starts)
    listed_records = np.ones(len(starts), np.bool_)
    for each, message in enumerate(plain):
        if message.records:
            inside = number == each
            listed_records[inside] = is_listed(starts[inside] - joined.starts[each], message.records)
    return listed_records


def _reject(
    samples: Samples, points: Int64s, rejections: Rejections, rejected_records: Sequence[Rejection]
) -> None:
    """Adds a rejection for each payload and reason: the first message, and how many points it stands for.

    Args:
      points: the numbers of the samples that are rejected.
      rejected_records: the records that are rejected as a whole.
    """
    names: dict[int, str] = {}

    def why(number: int) -> RejectedError:
        if number < 0:
            return rejected_records[number][2]
        series, time_ms = int(samples.index[number]), int(samples.times_ms[number])
        outcome = samples.outcomes[series]
        if isinstance(outcome, RejectedError):
            return outcome
        if not FIRST_MILLISECOND <= time_ms <= LAST_MILLISECOND:
            return _time_error(time_ms)
        if series not in names:
            names[series] = str(outcome)[:200]
        value = float(samples.bits[number : number + 1].view(np.float64)[0])
        return RejectedError(Reason.BAD_NUMBER, f"value is NaN or Infinite: {value} of {names[series]}")

    spans = np.array([each[:2] for each in rejected_records], np.int64).reshape(-1, 2)
    starts = np.concatenate([samples.starts[points], spans[:, 0]])
    ends = np.concatenate([samples.ends[points], spans[:, 1]])
    numbers = np.concatenate([points, np.arange(-len(rejected_records), 0)])
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    for start, end, error, group in grouped(starts, ends, samples.wholes, numbers[order], why):
        rejections.add(start, end, error, len(group), records_of(starts[group], ends[group], (start, end)))
