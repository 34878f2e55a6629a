"""The parts of row keys, rendered for all records of a batch at once (docs/spec/bigtable-patterns.md §5).

Each part becomes binary[n]. What a part cannot hold is refused and never truncated: a value that is
missing, empty, too long, contains the separator, or could not be told from its padding.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.stores.declared.codec import time_parts
from timebeam.schema.stores.declared.codec.records import RecordBatch
from timebeam.schema.stores.declared.model import TableLayout
from timebeam.schema.stores.declared.parts import Const, Field, Hash, Part, Salt, Suffix, Time

_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class RecordRefusals:
    """Why records of a batch were refused: the first reason of each."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.by_record: dict[int, tuple[Reason, str]] = {}

    def add(self, record: int, reason: Reason, message: str) -> None:
        """Refuses one record, unless it is refused already."""
        self.by_record.setdefault(record, (reason, f"table {self._table}: {message}"))


class Renderer:
    """Renders the parts of one layout's keys for one batch; a part that occurs twice once."""

    def __init__(
        self, layout: TableLayout, batch: RecordBatch, event: Int64s, refusals: RecordRefusals
    ) -> None:
        """A renderer for a batch.

        Args:
          event: int64[n], the event time in the unit of the layout's event; 0 where it has none.
        """
        self._layout, self._batch, self._event, self._refusals = layout, batch, event, refusals
        self._separator = layout.separator.decode()
        self._done: dict[Part, pa.Array | pa.Scalar] = {}

    def keys(self) -> list[bytes]:
        """The row key of each record; anything where it is refused."""

        import pyarrow.compute as pc

        if not self._layout.allow_overwrite:
            self._refuse_joined()
        rendered = [self.rendered(key_part) for key_part in self._layout.key]
        joined = pc.binary_join_element_wise(*rendered, pa.scalar(self._layout.separator))
        if isinstance(joined, pa.Scalar):  # of constants alone
            return [joined.as_py()] * len(self._batch)
        keys: list[bytes] = joined.to_pylist()
        return keys

    def rendered(self, key_part: Part) -> pa.Array | pa.Scalar:
        """binary[n], or one scalar for all records."""
        rendered = self._done.get(key_part)
        if rendered is None:
            rendered = self._done[key_part] = self._render(key_part)
        return rendered

    def _render(self, key_part: Part) -> pa.Array | pa.Scalar:
        if isinstance(key_part, Const):
            return pa.scalar(key_part.value)
        if isinstance(key_part, Field):
            return self._field(key_part)
        if isinstance(key_part, Time):
            return self._time(key_part)
        if isinstance(key_part, Salt):
            return self._salt(key_part)
        if isinstance(key_part, Hash):
            digests = [
                hashlib.new(key_part.function, x, usedforsecurity=False)
                for x in self._joined(key_part.sources)
            ]
            if key_part.is_hex:
                return pa.array([x.hexdigest()[: key_part.size].encode() for x in digests], pa.binary())
            return pa.array([x.digest()[: key_part.size] for x in digests], pa.binary())
        return self._suffix(key_part)

    def _field(self, field: Field) -> pa.Array:
        import pyarrow.compute as pc

        coded = self._batch.texts(field.name).dictionary_encode()
        values = in_case(field, coded.dictionary)
        separator = self._separator if field in self._layout.key else ""
        good = _storable(field, values, separator)
        if field.size is not None:
            pad = pc.ascii_rpad if field.align_left else pc.ascii_lpad
            values = pad(values, field.size, field.pad)
        indices = coded.indices.fill_null(-1).to_numpy()
        usable = np.append(good, False)[indices]
        for record in np.flatnonzero(~usable).tolist():
            text = None if indices[record] < 0 else coded.dictionary[int(indices[record])].as_py()
            self._refusals.add(record, Reason.SERIES_NOT_STORABLE, _why(field, text, separator))
        return pc.fill_null(values.cast(pa.binary()).take(coded.indices), b"")

    def _time(self, time: Time) -> pa.Array:
        numbers, good = time_parts.numbers(time, self._event)
        for record in np.flatnonzero(~good).tolist():
            message = f"{time.name} {self._event[record]} does not fit the key: is the unit {time.unit}?"
            if self._event[record] > time_parts.last_in_key(time):
                message = f"{time.name} {self._event[record]} is after the year 9999 in {time.zone}"
            self._refusals.add(record, Reason.TIMESTAMP_OUT_OF_RANGE, message)
        return time_parts.render(time, numbers)

    def _salt(self, salt: Salt) -> pa.Array:
        import pyarrow.compute as pc

        hashes = salt_hashes(salt.function, self._joined(salt.sources))
        counts: Int64s | int = salt.buckets
        if salt.since:
            assert self._layout.event is not None
            instants = [instant for instant, _ in salt.since]
            epoch = np.searchsorted(
                instants, time_parts.to_ms(self._event, self._layout.event[1]), side="right"
            )
            counts = np.array([salt.buckets, *(count for _, count in salt.since)], np.int64)[epoch]
        salts = np.array([salt.base], np.int64) + (hashes % np.asarray(counts, np.uint64)).astype(np.int64)
        return pc.ascii_lpad(pa.array(salts).cast(pa.string()), salt.size, "0").cast(pa.binary())

    def _suffix(self, suffix: Suffix) -> pa.Array:
        if suffix.sources is None:
            inputs: Iterable[bytes] = (self._batch.payload(i) for i in range(len(self._batch)))
        else:
            columns = [self._batch.texts(name).to_pylist() for name in suffix.sources]
            # Absent and empty, and ("a", "") and ("", "a"), are told apart.
            inputs = (b"".join(_marked(x) for x in row) for row in zip(*columns, strict=True))
        return pa.array([(b"%08x" % zlib.crc32(x))[: suffix.size] for x in inputs], pa.binary())

    def _refuse_joined(self) -> None:
        """Refuses texts with a separator where it is all that separates fields of any length in a hash."""
        import pyarrow.compute as pc

        for key_part in self._layout.key:
            joined = joined_fields(self._layout, key_part)
            for field in joined if len(joined) > 1 and self._separator else ():
                found = pc.match_substring(self._batch.texts(field.name), self._separator)
                for record in np.flatnonzero(
                    pc.fill_null(found, False).to_numpy(zero_copy_only=False)
                ).tolist():
                    message = (
                        f"{field.name} contains the separator {self._separator!r}, which ends it in the hash"
                    )
                    self._refusals.add(record, Reason.SERIES_NOT_STORABLE, message)

    def _joined(self, sources: Sequence[Field | Time]) -> list[bytes]:
        import pyarrow.compute as pc

        rendered = [self.rendered(source) for source in sources]
        joined = rendered[0]
        if len(rendered) > 1:
            joined = pc.binary_join_element_wise(*rendered, pa.scalar(self._layout.separator))
        key_texts: list[bytes] = joined.to_pylist()
        return key_texts


def joined_fields(layout: TableLayout, key_part: Part) -> list[Field]:
    """The fields in a hash that have any length, and that no part of the key keeps free of separators."""
    sources = key_part.sources if isinstance(key_part, Hash) else ()
    return [
        source
        for source in sources
        if isinstance(source, Field)
        and source.size is None
        and (not layout.separator or source not in layout.key)
    ]


def in_case(field: Field, texts: pa.Array) -> pa.Array:
    """string[n]: the texts of a field in the case in which the key holds them.

    The only place that folds case: character by character, where Python makes two of some (SS of ß).
    """

    import pyarrow.compute as pc

    if field.case is None:
        return texts
    return pc.utf8_lower(texts) if field.case == "lower" else pc.utf8_upper(texts)


def salt_hashes(function: str, inputs: Sequence[bytes]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """uint64[n]: what salts are the remainder of; of MD5 the first 8 bytes, big-endian.

    >>> times = [b"20150301124501001", b"20150301124501002", b"20150301124501004"]
    >>> (salt_hashes("crc32", times) % 3 + 1).tolist()  # three buckets, from 1
    [1, 3, 2]
    """
    if function == "crc32":
        return np.fromiter(map(zlib.crc32, inputs), np.uint64, len(inputs))
    if function == "md5":
        firsts = b"".join(hashlib.md5(x, usedforsecurity=False).digest()[:8] for x in inputs)
        return np.frombuffer(firsts, ">u8").astype(np.uint64)
    lengths = np.fromiter(map(len, inputs), np.int64, len(inputs))
    width = int(lengths.max(initial=0))
    table = np.frombuffer(b"".join(x.ljust(width, b"\0") for x in inputs), np.uint8).reshape(
        len(inputs), width
    )
    hashes = np.full(len(inputs), _FNV_BASIS, np.uint64)
    for offset in range(width):
        inside = lengths > offset
        hashes[inside] = (hashes[inside] ^ table[inside, offset]) * np.uint64(_FNV_PRIME)
    return hashes


def _marked(text: str | None) -> bytes:
    if text is None:
        return b"-"
    raw = text.encode()
    return b"%d:" % len(raw) + raw


def _storable(field: Field, values: pa.Array, separator: str) -> Bools:
    """bool[k]: which texts the part can hold so that they come back as they were."""

    import pyarrow.compute as pc

    sizes = pc.binary_length(values)
    good = pc.greater(sizes, 0)
    if separator:
        good = pc.and_(good, pc.invert(pc.match_substring(values, separator)))
    if field.is_uint:
        good = pc.and_(good, pc.match_substring_regex(values, "^(0|[1-9][0-9]*)$"))
    if field.size is not None:
        good = pc.and_(good, pc.less_equal(sizes, field.size))
        if not field.is_uint:
            edge = pc.ends_with if field.align_left else pc.starts_with
            good = pc.and_(good, pc.invert(edge(values, field.pad)))
    return good.to_numpy(zero_copy_only=False)


def _why(field: Field, text: str | None, separator: str) -> str:
    """Why a text cannot be stored by a part."""
    if not text:
        return f"{field.name} is {'missing' if text is None else 'empty'}, and the key needs it"
    shown = repr(text if len(text) <= 80 else text[:80] + "...")
    if separator and separator in text:
        return f"{field.name} {shown} contains the separator {separator!r}"
    if field.is_uint and not (text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")):
        return f"{field.name} {shown} is not a whole number without sign and leading zeros"
    if field.size is not None and len(text.encode()) > field.size:
        return f"{field.name} {shown} is longer than {field.size} bytes"
    return (
        f"{field.name} {shown} {'ends' if field.align_left else 'begins'} with {field.pad!r}, which pads it"
    )
