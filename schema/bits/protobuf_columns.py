"""Fields of many protobuf messages at once, as columns: no object for a field.

protobuf.dev/programming-guides/encoding. All messages of a level step through their fields together; the few
that have many fields, or fields of an unusual form, are read one by one.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s, byte_view, words
from timebeam.schema.bits.memory_limit import VALUE_BYTES, charge
from timebeam.schema.bits.protobuf import ProtoError, SingleMessages

PADDING = bytes(16)
"""What must follow a text, so that every word that begins in it lies inside."""

_TOGETHER = 128
"""Messages that step together; fewer are read one by one, which then takes less time."""

_STOPS = np.uint64(0x0080808080808080)
_ONE = np.uint64(1)
_NONE = -1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class CorruptMessagesError(ProtoError):
    """Some of the messages are no protobuf.

    Attributes:
      positions: int64[k], where they begin in the text.
    """

    def __init__(
        self, positions: Int64s, why: str = "corrupt message: its fields do not end where it ends"
    ) -> None:
        super().__init__(why)
        self.positions = positions


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """m fields, in the order of their bytes.

    Attributes:
      message: int64[m], the number of the message that each is in.
      tags: int64[m], `number << 3 | type`.
      starts, firsts, ends: int64[m], where the field, and its content, begin, and where both end.
    """

    message: Int64s
    tags: Int64s
    starts: Int64s
    firsts: Int64s
    ends: Int64s

    def of(self, tag: int) -> Fields:
        """The fields with a number and type."""
        return self.take(self.tags == tag)

    def take(self, chosen: Bools | Int64s) -> Fields:
        """Some of the fields."""
        return Fields(
            self.message[chosen],
            self.tags[chosen],
            self.starts[chosen],
            self.firsts[chosen],
            self.ends[chosen],
        )

    def __len__(self) -> int:
        return len(self.tags)


def scan(text: bytes, starts: Int64s, ends: Int64s, run_tag: int = _NONE) -> Fields:
    """The fields of n messages.

    Args:
      text: the bytes, and `PADDING`.
      starts, ends: int64[n], ascending spans.
      run_tag: adjacent fields with this tag may be given as one, which saves time.

    Raises:
      CorruptMessagesError: some are no messages.
      NoRoomError: they have too many fields.
    """
    steps: list[tuple[Int64s, Int64s, Int64s, Int64s]] = []
    active, position, limits = np.arange(len(starts)), starts, ends
    if not (ends > starts).all():
        active = np.flatnonzero(ends > starts)
        position, limits = starts[active], ends[active]
    odd: list[Int64s] = []
    odd_positions: list[Int64s] = []
    corrupt: list[Int64s] = []
    counts = np.zeros(len(starts), np.int64)
    in_run = False
    while len(active) >= _TOGETHER:
        charge(len(active) * VALUE_BYTES)
        tags, firsts, field_ends, plain = _step(text, position)
        good = field_ends <= limits
        good &= plain
        if not good.all():
            corrupt.append(active[plain & ~good])
            odd.append(active[~plain])
            odd_positions.append(position[~plain])
            active, position, limits = active[good], position[good], limits[good]
            tags, firsts, field_ends = tags[good], firsts[good], field_ends[good]
        is_run = len(active) > 0 and bool((tags == run_tag).all())
        if is_run and in_run and len(steps[-1][0]) == len(active):
            steps[-1] = (*steps[-1][:3], field_ends)
        else:
            counts[active] += 1
            steps.append((active, tags, firsts, field_ends))
        in_run = is_run
        unfinished = field_ends < limits
        if unfinished.all():
            position = field_ends
        else:
            active, position, limits = active[unfinished], field_ends[unfinished], limits[unfinished]
    odd.append(active)
    odd_positions.append(position)
    single = SingleMessages(text)
    messages = np.concatenate(odd)
    spans = np.stack((messages, np.concatenate(odd_positions), ends[messages]), axis=1)
    for message, first, end in spans.tolist():
        single.read(message, first, end)
    single.charge()
    corrupt.append(np.array(single.corrupt, np.int64))
    if any(map(len, corrupt)):
        raise CorruptMessagesError(starts[np.unique(np.concatenate(corrupt))])
    return _ordered(steps, counts, single.columns(), starts)


def varints(text: bytes, firsts: Int64s, ends: Int64s) -> Int64s:
    """int64[n]: the numbers in the varints that `scan` has delimited, unsigned ones modulo 2**64."""
    sizes = ends - firsts
    word = words(text, firsts)
    short = sizes <= 8
    kept = np.where(short, sizes, 8).astype(np.uint64) * np.uint64(8)
    mask = np.where(kept == 64, np.uint64(0xFFFFFFFFFFFFFFFF), (_ONE << (kept % np.uint64(64))) - _ONE)
    word &= mask & np.uint64(0x7F7F7F7F7F7F7F7F)
    numbers = without_continuation_bits(word)
    if not short.all():
        long = np.flatnonzero(~short)
        after = words(text, firsts[long] + 8)
        numbers[long] |= (after & np.uint64(0x7F)) << np.uint64(56)
        tenth = sizes[long] > 9
        numbers[long] |= np.where(tenth, (after >> np.uint64(8)) & _ONE, np.uint64(0)) << np.uint64(63)
    return numbers.view(np.int64)


def packed_varints(text: bytes, packed: Fields) -> tuple[Int64s, Int64s, Bools]:
    """The numbers in m fields of packed varints, those above 2**32 as -1.

    Returns:
      (numbers int64[k], int64[m] how many each field has, bool[m] which are corrupt); no numbers if one is
      corrupt.

    Raises:
      NoRoomError: they are too many.
    """
    sizes = packed.ends - packed.firsts
    after = np.cumsum(sizes)
    total = int(after[-1]) if len(after) else 0
    charge(total * VALUE_BYTES // 2)
    shift = packed.firsts - (after - sizes)
    content = byte_view(text)[np.arange(total) + np.repeat(shift, sizes)]
    is_last = content < 0x80
    corrupt = np.zeros(len(sizes), np.bool_)
    nonempty = sizes > 0
    corrupt[nonempty] = ~is_last[after[nonempty] - 1]
    lasts = np.flatnonzero(is_last)
    if corrupt.any() or not len(lasts):
        return np.zeros(0, np.int64), np.zeros(len(sizes), np.int64), corrupt
    firsts = np.append(0, lasts[:-1] + 1)
    lengths = lasts - firsts + 1
    place = np.arange(total) - np.repeat(firsts, lengths)
    pieces = (content & 0x7F).astype(np.int64) << (7 * np.minimum(place, 5))
    numbers = np.add.reduceat(pieces, firsts)
    numbers[lengths > 5] = -1
    last_count = np.append(0, np.cumsum(is_last))
    return numbers, last_count[after] - last_count[after - sizes], corrupt


def fixed64(text: bytes, firsts: Int64s) -> Int64s:
    """int64[n]: the eight bytes at each position."""
    return words(text, firsts).view(np.int64)


def without_continuation_bits(
    word: np.ndarray[tuple[int], np.dtype[np.uint64]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The numbers in words of eight bytes of a varint, whose eighth bits are ignored: uint64[n] both.

    >>> word = np.array([0x02AC], np.uint64)  # the varint ac 02, the first byte lowest
    >>> without_continuation_bits(word).tolist()
    [300]
    """
    word = (word & np.uint64(0x007F007F007F007F)) | ((word & np.uint64(0x7F007F007F007F00)) >> _ONE)
    # (1) Of each two bytes the seven bits of the upper one move down over the eighth bit: 14 bits.
    word = (word & np.uint64(0x00003FFF00003FFF)) | ((word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    # (2) Of each four bytes the upper 14 bits move down over two free bits: 28 bits.
    return (word & np.uint64(0x0FFFFFFF)) | ((word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
    # (3) The upper 28 bits move down over four free bits: 56 bits.


def _step(text: bytes, position: Int64s) -> tuple[Int64s, Int64s, Int64s, Bools]:
    """(tags, where contents begin, where they end, whether the form is a usual one) of fields."""
    word = words(text, position)
    tags = (word & np.uint64(0xFF)).view(np.int64)
    kind = tags & 7
    word >>= np.uint64(8)
    plain = (tags > 7) & (tags < 0x80)
    first_tag = int(tags[0])
    alike = bool((tags == first_tag).all())
    if alike and first_tag & 7 == _BYTES:
        sizes, lengths, whole = _lengths(word)
        firsts = position + 1 + sizes
        return tags, firsts, firsts + lengths, plain & whole
    if alike and first_tag & 7 == _FIXED64:
        firsts = position + 1
        return tags, firsts, firsts + 8, plain
    sizes, lengths, whole = _lengths(word)
    is_bytes = kind == _BYTES
    firsts = position + 1 + np.where(is_bytes, sizes, 0)
    others = np.where(kind == _FIXED64, 8, np.where(kind == _VARINT, sizes, 4))
    ends = firsts + np.where(is_bytes, lengths, others)
    known = is_bytes | (kind == _VARINT)
    plain &= (whole & known) | (kind == _FIXED64) | (kind == _FIXED32)
    return tags, firsts, ends, plain


def _lengths(word: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> tuple[Int64s, Int64s, Bools]:
    """(bytes of the varints that words of seven bytes begin with, their numbers, whether each ends there)."""
    if not (word & np.uint64(0x80)).any():
        return np.ones(len(word), np.int64), (word & np.uint64(0x7F)).view(np.int64), np.ones(len(word), bool)
    stops = ~word & _STOPS
    stop = stops & (~stops + _ONE)
    below = stop - _ONE
    sizes = (stop.astype(np.float64).view(np.int64) >> 52) - 1022 >> 3
    #        (1)                                       (2)           (3)
    # (1) A double of the stop bit alone, 2**k,
    # (2) whose exponent, 1023 + k, makes this k + 1,
    # (3) which is 8 times the size, since the stop bit is the last one of its byte.
    return (
        sizes,
        without_continuation_bits(word & below & np.uint64(0x7F7F7F7F7F7F7F)).view(np.int64),
        stops != 0,
    )


def _ordered(
    steps: list[tuple[Int64s, Int64s, Int64s, Int64s]],
    counts: Int64s,
    single: tuple[Int64s, Int64s, Int64s, Int64s],
    starts: Int64s,
) -> Fields:
    """The fields of all steps, and then of single messages, in the order of their bytes."""
    before = counts.copy()
    message = single[0]
    if len(message):
        counts += np.bincount(message, minlength=len(counts))
    offsets = np.cumsum(counts) - counts
    total = int(counts.sum())
    tags, firsts, ends = (np.empty(total, np.int64) for _ in range(3))
    for number, (active, step_tags, step_firsts, step_ends) in enumerate(steps):
        places = offsets[active]
        places += number
        tags[places], firsts[places], ends[places] = step_tags, step_firsts, step_ends
    if len(message):  # messages were read one after the other, though not in their order
        new = np.ones(len(message), np.bool_)
        new[1:] = message[1:] != message[:-1]
        run = np.flatnonzero(new)
        within = np.arange(len(message)) - np.repeat(run, np.diff(np.append(run, len(message))))
        places = offsets[message] + before[message] + within
        tags[places], firsts[places], ends[places] = single[1:]
    message = np.repeat(np.arange(len(counts)), counts)
    field_starts = np.empty(total, np.int64)
    field_starts[1:] = ends[:-1]
    nonempty = counts > 0
    field_starts[offsets[nonempty]] = starts[nonempty]
    return Fields(message, tags, field_starts, firsts, ends)


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
