"""The parts of a row key as declared (docs/spec/bigtable-patterns.md §5), already checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from timebeam.schema.bits.times import Span


@dataclasses.dataclass(frozen=True, slots=True)
class Const:
    """Literal bytes."""

    value: bytes

    @property
    def size(self) -> int:
        """Bytes in the key."""
        return len(self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """The text of a field.

    Attributes:
      name: of the field.
      is_uint: whether it must be a whole number without sign and leading zeros.
      size: bytes in the key, None if as long as the value.
      pad: the byte that fills up to `size`.
      align_left: whether the value is left of its padding.
      case: "lower", "upper" or None for as it is.
    """

    name: str
    is_uint: bool = False
    size: int | None = None
    pad: str = " "
    align_left: bool = True
    case: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Time:
    """The event time, or the start of the bucket it falls into.

    Attributes:
      name: of the field.
      unit: "s", "ms" or "us" since 1970-01-01 UTC, of the field and of the number in the key.
      bucket: None for the time itself.
      zone: where days and months of the bucket and the letters of `pattern` begin.
      divide: the number is divided by this before it is written.
      form: "decimal", "be32", "be64" or "pattern".
      pattern: with the form "pattern", the placeholders of `declared.codec.time_parts`.
      size: bytes in the key.
      reverse: the number is subtracted from this, so that the newest row comes first.
    """

    name: str
    unit: str
    bucket: Span | None
    zone: str
    divide: int
    form: str
    pattern: str
    size: int
    reverse: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Salt:
    """base + hash(of) mod buckets, in decimal digits.

    Attributes:
      sources: what is hashed, joined with the layout's separator.
      function: "crc32", "md5" or "fnv1a64".
      buckets: how many, for events before the first of `since`.
      size: digits.
      since: (event time in ms, buckets from then on), ascending.
    """

    sources: tuple[Field | Time, ...]
    function: str
    buckets: int
    base: int
    size: int
    since: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Hash:
    """A digest in place of what is hashed.

    Attributes:
      sources: what is hashed, joined with the layout's separator.
      function: "md5" or "sha1".
      is_hex: hexadecimal digits, else the raw bytes.
      size: bytes (or digits) taken from the front of the digest.
    """

    sources: tuple[Field | Time, ...]
    function: str
    is_hex: bool
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Suffix:
    """The first hexadecimal digits of the CRC-32 of fields, or of the record: keeps apart records that tie.

    Attributes:
      sources: names of fields; None for the original bytes of the record.
      size: digits, up to 8.
    """

    sources: tuple[str, ...] | None
    size: int


Part = Const | Field | Time | Salt | Hash | Suffix


def inputs(key_part: Part) -> frozenset[str]:
    """The fields that the bytes of a part are made from."""
    if isinstance(key_part, (Field, Time)):
        return frozenset((key_part.name,))
    if isinstance(key_part, (Salt, Hash)):
        return frozenset(source.name for source in key_part.sources)
    return frozenset(key_part.sources or ()) if isinstance(key_part, Suffix) else frozenset()


def follows(key_part: Part, fields: Iterable[str]) -> bool:
    """Whether the bytes of a part follow from these fields alone."""
    return not (isinstance(key_part, Suffix) and key_part.sources is None) and inputs(key_part) <= set(fields)
