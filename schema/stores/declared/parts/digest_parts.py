"""Parts of row keys that are made from other parts, fields, or the whole record: salts, hashes, suffixes.

Format: docs/spec/bigtable-patterns.md §5.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.stores.declared.parts.key_part import Field, KeyFields, KeyPart, Renderer, Told
from timebeam.schema.stores.declared.parts.time_part import Time, to_ms
from timebeam.schema.stores.declared.read_section import Count, Location, Number, Options, read

SAFE_BITS = 80
"""Of a hash that tells what is hashed: of 10^9 records two share it with a probability of less than 10^-6."""

_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class _OfParts(KeyPart):
    """A part whose bytes follow from other parts of a key, `digested`."""

    __slots__ = ()
    refers: ClassVar[bool] = True
    digested: tuple[KeyPart, ...]

    @property
    def sources(self) -> Sequence[KeyPart]:
        return self.digested

    def is_known(self, key: Sequence[KeyPart], fields: Collection[str]) -> bool:
        return all(source in key or source.stored_field in fields for source in self.digested)


@dataclasses.dataclass(frozen=True, slots=True)
class Salt(_OfParts):
    """base + hash(of) mod buckets, in decimal digits.

    Attributes:
      digested: what is hashed, joined with the layout's separator.
      function: "crc32", "md5" or "fnv1a64".
      buckets: how many, for events before the first of `since`.
      size: digits.
      since: (event time in ms, buckets from then on), ascending.
    """

    kind: ClassVar[str] = "salt"
    digested: tuple[KeyPart, ...]
    function: str
    buckets: int
    base: int
    size: int
    since: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, content: object, place: Location, fields: KeyFields) -> Salt:
        options = read(_SaltOptions, content, place)
        sources = _sources(place, "salt", options.salt, fields)
        if options.buckets is None:
            raise place.problem(None, "a salt needs buckets: how many ranges of keys writes are spread over")
        base, size = options.base, options.width
        since = _since(place, options.since)
        if [time for time, _ in since] != sorted({time for time, _ in since}):
            raise place.problem("since", "the instants of since must ascend")
        for count in (options.buckets, *(count for _, count in since)):
            if base + count - 1 >= 10**size:
                raise place.problem(
                    "width", f"salts up to {base + count - 1} do not fit {size} digits: raise width"
                )
        return cls(sources, options.hash, options.buckets, base, size, since)

    @property
    def tells(self) -> frozenset[str]:
        return frozenset()

    @property
    def choices(self) -> int:
        return max(self.buckets, *(count for _, count in self.since), 1)

    def render(self, renderer: Renderer) -> pa.Array:
        hashes = salt_hashes(self.function, renderer.joined(self.digested).to_pylist())
        counts: Int64s | int = self.buckets
        if self.since:
            times = [time for time, _ in self.since]
            epoch = np.searchsorted(times, to_ms(renderer.times, renderer.unit), side="right")
            counts = np.array([self.buckets, *(count for _, count in self.since)], np.int64)[epoch]
        salts = np.array([self.base], np.int64) + (hashes % np.asarray(counts, np.uint64)).astype(np.int64)
        return pc.ascii_lpad(pa.array(salts).cast(pa.string()), self.size, "0").cast(pa.binary())

    def explain(self) -> str:
        since = "".join(f", {count} from {time} ms on" for time, count in self.since)
        names = ", ".join(sorted(self.inputs))
        return f"salt: {self.base} + {self.function}({names}) mod {self.buckets}{since}"

    def every(self, count: int) -> list[bytes]:
        return [str(self.base + number).rjust(self.size, "0").encode() for number in range(count)]


class _SaltOptions(Options, frozen=True):
    salt: tuple[str | dict[str, Any], ...]
    hash: Literal["crc32", "md5", "fnv1a64"] = "crc32"
    buckets: Count | None = None
    base: Number = 0
    width: Count = 1
    since: Any = ()


def _since(place: Location, entries: Any) -> tuple[tuple[int, int], ...]:
    """(time in ms, buckets) of each entry."""
    since: list[tuple[int, int]] = []
    for entry in entries if isinstance(entries, (list, tuple)) else (None,):
        time, count = entry if isinstance(entry, list) and len(entry) == 2 else (None, 0)
        if isinstance(time, datetime.datetime) and time.tzinfo is not None:
            time = int(time.timestamp() * 1000)
        if not isinstance(time, int) or isinstance(time, bool) or not isinstance(count, int) or count < 1:
            text = "since must be a list of [instant, buckets], as [2026-01-01T00:00:00Z, 8]"
            raise place.problem("since", text)
        since.append((time, count))
    return tuple(since)


@dataclasses.dataclass(frozen=True, slots=True)
class Hash(_OfParts):
    """A digest in place of what is hashed.

    Attributes:
      digested: what is hashed, joined with the layout's separator.
      function: "md5" or "sha1".
      is_hex: hexadecimal digits, else the raw bytes.
      size: bytes (or digits) taken from the front of the digest.
    """

    kind: ClassVar[str] = "hash"
    digested: tuple[KeyPart, ...]
    function: str
    is_hex: bool
    size: int

    @classmethod
    def read(cls, content: object, place: Location, fields: KeyFields) -> Hash:
        options = read(_HashOptions, content, place)
        sources = _sources(place, "of", options.of, fields)
        is_hex = options.encoding == "hex"
        full = hashlib.new(options.hash, usedforsecurity=False).digest_size * (2 if is_hex else 1)
        length = full if options.length is None else options.length
        if length > full:
            raise place.problem(
                "length", f"{options.hash} has {full} {'digits' if is_hex else 'bytes'}, not {length}"
            )
        return cls(sources, options.hash, is_hex, length)

    @property
    def hashed(self) -> frozenset[str]:
        return self.inputs

    def render(self, renderer: Renderer) -> pa.Array:
        digests = [
            hashlib.new(self.function, text, usedforsecurity=False)
            for text in renderer.joined(self.digested).to_pylist()
        ]
        if self.is_hex:
            return pa.array([digest.hexdigest()[: self.size].encode() for digest in digests], pa.binary())
        return pa.array([digest.digest()[: self.size] for digest in digests], pa.binary())

    def explain(self) -> str:
        names, unit = ", ".join(sorted(self.inputs)), "digits" if self.is_hex else "bytes"
        return f"hash: {self.function}({names}), first {self.size} {unit}"

    def certainty(self, name: str, separator: bytes, key: Sequence[KeyPart]) -> Told:
        if not any(source.certainty(name, separator, key) for source in self.digested):
            return Told.NO
        is_safe = self.size * (4 if self.is_hex else 8) >= SAFE_BITS
        splits = bool(separator) or len(self.open_texts(separator, key)) < 2
        return Told.YES if is_safe and splits else Told.BY_DIGEST

    def open_texts(self, separator: bytes, key: Sequence[KeyPart]) -> Sequence[KeyPart]:
        return [
            source for source in self.digested if source.size is None and (not separator or source not in key)
        ]


class _HashOptions(Options, frozen=True):
    hash: Literal["md5", "sha1"] = "md5"
    of: tuple[str | dict[str, Any], ...] = ()
    encoding: Literal["hex", "raw"] = "hex"
    length: Count | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Suffix(KeyPart):
    """The first hexadecimal digits of the CRC-32 of fields, or of the record: keeps apart records that tie.

    Attributes:
      digested: names of fields; None for the original bytes of the record.
      size: digits, up to 8.
    """

    kind: ClassVar[str] = "suffix"
    is_tie: ClassVar[bool] = True
    digested: tuple[str, ...] | None
    size: int

    @classmethod
    def read(cls, content: object, place: Location, fields: KeyFields) -> Suffix:
        options = read(_SuffixOptions, content, place)
        names, size = options.suffix, options.width
        if size > 8:
            raise place.problem("width", "a CRC-32 has 8 digits at most")
        if names == "payload":
            return cls(None, size)
        if isinstance(names, str):
            raise place.problem("suffix", 'suffix must be a list of names, as ["A", "B"], or "payload"')
        if not names:
            raise place.problem("suffix", "suffix names no fields")
        return cls(tuple(names), size)

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset(self.digested or ())

    @property
    def is_of_record(self) -> bool:
        return self.digested is None

    def render(self, renderer: Renderer) -> pa.Array:
        batch = renderer.batch
        if self.digested is None:
            inputs: Iterable[bytes] = (batch.payload(i) for i in range(len(batch)))
        else:
            columns = [batch.texts(name).to_pylist() for name in self.digested]
            # Absent and empty, and ("a", "") and ("", "a"), are told apart.
            inputs = (b"".join(map(_marked, row)) for row in zip(*columns, strict=True))
        return pa.array([(b"%08x" % zlib.crc32(text))[: self.size] for text in inputs], pa.binary())

    def explain(self) -> str:
        return f"suffix: crc32 of {', '.join(sorted(self.inputs)) or 'the whole record'}, {self.size} digits"

    def certainty(self, name: str, separator: bytes, key: Sequence[KeyPart]) -> Told:
        return Told.BY_DIGEST if self.digested is None or name in self.digested else Told.NO

    def example(self) -> Mapping[str, str]:
        return {name: name.lower() for name in self.digested or ()}


class _SuffixOptions(Options, frozen=True):
    suffix: str | tuple[str, ...]
    hash: Literal["crc32"] = "crc32"
    width: Count = 8


def _sources(
    place: Location, option: str, entries: Sequence[str | dict[str, Any]], fields: KeyFields
) -> tuple[KeyPart, ...]:
    """What a salt or hash is of: parts of the key by name, other fields, or parts written in place."""
    if not entries:
        raise place.problem(option, f'{option} must be a list of fields, as ["TS"]')
    sources: list[KeyPart] = []
    for number, entry in enumerate(entries):
        if isinstance(entry, str):
            if entry in fields.units and entry not in fields.named:
                raise place.problem(option, f'write the time out: {{ time = "{entry}", format = ... }}')
            sources.append(fields.named.get(entry) or Field(entry))
        elif "field" in entry or "time" in entry:
            kind = Field if "field" in entry else Time
            sources.append(kind.read(entry, place.within(option, number), fields))
        else:
            raise place.problem(option, f"{option}: {entry!r} is neither a field's name nor a part")
    return tuple(sources)


def _marked(text: str | None) -> bytes:
    if text is None:
        return b"-"
    raw = text.encode()
    return b"%d:" % len(raw) + raw


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
