"""A part of a row key, what all kinds of parts can do, and the two plainest kinds.

Format: docs/spec/bigtable-patterns.md §5.

A kind of part is a subclass of `KeyPart`: it reads its options, renders its bytes for all records of a
batch at once, and says what its bytes tell. `declared.keys` lists the kinds.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.bits.times import Span
from timebeam.schema.stores.declared.read_section import Count, Location, Options, read
from timebeam.schema.stores.declared.records import RecordBatch


class Told(enum.IntEnum):
    """Whether bytes tell the value of a field."""

    NO = 0
    BY_DIGEST = 1
    YES = 2


class RecordRejections:
    """Why records of a batch were rejected: the first reason of each."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.by_record: dict[int, tuple[Reason, str]] = {}

    def add(self, record: int, reason: Reason, message: str) -> None:
        """Rejects one record, unless it is rejected already."""
        self.by_record.setdefault(record, (reason, f"table {self._table}: {message}"))


@dataclasses.dataclass(slots=True)
class Renderer:
    """Renders the parts of one layout's keys for one batch; a part that occurs twice once.

    Attributes:
      key, separator: of the layout.
      batch: n records.
      times: int64[n], the event time in `unit`, that of the layout's event; 0 where it has none.
      rejections: of what a part cannot hold: it is never truncated.
    """

    key: Sequence[KeyPart]
    separator: bytes
    batch: RecordBatch
    times: Int64s
    unit: str
    rejections: RecordRejections
    _done: dict[KeyPart, pa.Array | pa.Scalar] = dataclasses.field(default_factory=dict)

    def rendered(self, key_part: KeyPart) -> pa.Array | pa.Scalar:
        """binary[n], or one scalar for all records."""
        rendered = self._done.get(key_part)
        if rendered is None:
            rendered = self._done[key_part] = key_part.render(self)
        return rendered

    def joined(self, key_parts: Sequence[KeyPart]) -> pa.Array | pa.Scalar:
        """binary[n] of several parts with the separator between them; a scalar if all are constant."""
        rendered = [self.rendered(key_part) for key_part in key_parts]
        if len(rendered) == 1:
            return rendered[0]
        return pc.binary_join_element_wise(*rendered, pa.scalar(self.separator))


@dataclasses.dataclass
class KeyFields:
    """The fields that the parts of a key and the columns have in common.

    Attributes:
      units: of the fields that are times.
      within: the buckets that the times of qualifiers count from, by field.
      named: the parts of the key that hold a field, for salts and hashes that refer to them by its name.
    """

    units: dict[str, str] = dataclasses.field(default_factory=dict)
    within: dict[str, Span] = dataclasses.field(default_factory=dict)
    named: dict[str, KeyPart] = dataclasses.field(default_factory=dict)

    def add_time(self, place: Location, name: str, unit: str | None) -> str:
        """Notes a field that is a time; gives its unit."""
        unit_before = self.units.setdefault(name, unit or "ms")
        if unit is not None and unit != unit_before:
            raise place.problem(
                "unit", f"the time {name} is in {unit_before} elsewhere: one field has one unit"
            )
        return unit_before


class KeyPart(abc.ABC):
    """A part of a row key.

    Attributes:
      kind: the option that tells this kind, and its name in messages.
      size: bytes in the key, None if as long as the value.
      is_tie: whether it is there to keep apart records that are equal in all other parts.
      refers: whether its section can name other parts of the key, which are read first.
    """

    __slots__ = ()
    kind: ClassVar[str]
    is_tie: ClassVar[bool] = False
    refers: ClassVar[bool] = False
    size: int | None

    @classmethod
    @abc.abstractmethod
    def read(cls, content: object, place: Location, fields: KeyFields) -> KeyPart:
        """The part that a section declares.

        Raises:
          ProblemError: an option is wrong.
        """

    @abc.abstractmethod
    def render(self, renderer: Renderer) -> pa.Array | pa.Scalar:
        """binary[n]: the bytes of all records of a batch; or one scalar for all."""

    @abc.abstractmethod
    def explain(self) -> str:
        """What the bytes are, in words."""

    @property
    def stored_field(self) -> str | None:
        """The field whose value comes back from the bytes."""
        return None

    @property
    def is_exact(self) -> bool:
        """Whether the value of `stored_field` comes back as the record had it."""
        return False

    @property
    def sources(self) -> Sequence[KeyPart]:
        """The parts that the bytes are a digest of."""
        return ()

    @property
    def inputs(self) -> frozenset[str]:
        """The fields that the bytes are made from."""
        return frozenset(() if self.stored_field is None else (self.stored_field,)).union(
            *(each.inputs for each in self.sources)
        )

    @property
    def is_of_record(self) -> bool:
        """Whether the bytes depend on all of a record."""
        return False

    @property
    def tells(self) -> frozenset[str]:
        """The fields that records differ in if they differ in these bytes, so that it keeps them apart."""
        return self.inputs

    @property
    def hashed(self) -> frozenset[str]:
        """The fields that a read can select by although the bytes hold only a digest of them."""
        return frozenset()

    @property
    def choices(self) -> int:
        """How many different bytes there can be at any time, if `every` gives them; else 0."""
        return 0

    @property
    def label(self) -> str:
        """The part in messages."""
        if self.stored_field is not None:
            return self.stored_field or "the record"
        return f"a {self.kind} of {', '.join(sorted(self.inputs)) or 'the record'}"

    def follows(self, fields: Iterable[str]) -> bool:
        """Whether the bytes follow from these fields alone."""
        return not self.is_of_record and self.inputs <= set(fields)

    def is_known(self, key: Sequence[KeyPart], fields: Collection[str]) -> bool:
        """Whether the bytes follow from these fields, or from what the other parts of the key hold."""
        return self.stored_field is not None or self.follows(fields)

    def split(self, piece: bytes) -> str:
        """Why bytes of the right length are not of this part; empty if they may be."""
        return ""

    def value(self, piece: bytes) -> str | int | None:
        """The text, or the time in its unit, that bytes hold; None if they hold no field.

        Raises:
          ValueError: they are none of this part.
        """
        return None

    def every(self, count: int) -> list[bytes]:
        """All bytes that there can be, if there are so many choices."""
        return []

    def certainty(self, name: str, separator: bytes, key: Sequence[KeyPart]) -> Told:
        """Whether the bytes tell a field."""
        return Told.NO

    def open_texts(self, separator: bytes, key: Sequence[KeyPart]) -> Sequence[KeyPart]:
        """The texts of any length that are joined, and that no part of the key keeps free of separators."""
        return ()

    def example(self) -> Mapping[str, str]:
        """Made-up values of the fields, for explanations; none of times."""
        return {}

    def folded(self, texts: pa.Array) -> pa.Array:
        """string[n]: texts in the case in which the key holds them."""
        return texts


@dataclasses.dataclass(frozen=True, slots=True)
class Const(KeyPart):
    """Literal bytes."""

    kind: ClassVar[str] = "const"
    value_bytes: bytes

    @classmethod
    def read(cls, content: object, place: Location, fields: KeyFields) -> Const:
        return cls(read(_ConstOptions, content, place).const.encode())

    @property
    def size(self) -> int:  # type: ignore[override]  # of a frozen class: nobody writes it
        """Bytes in the key."""
        return len(self.value_bytes)

    def render(self, renderer: Renderer) -> pa.Scalar:
        return pa.scalar(self.value_bytes)

    def explain(self) -> str:
        return "always"

    def is_known(self, key: Sequence[KeyPart], fields: Collection[str]) -> bool:
        return True

    def split(self, piece: bytes) -> str:
        return "" if piece == self.value_bytes else f"{piece!r} where {self.value_bytes!r} must be"


class _ConstOptions(Options, frozen=True):
    const: str


@dataclasses.dataclass(frozen=True, slots=True)
class Field(KeyPart):
    """The text of a field.

    Attributes:
      name: of the field.
      is_uint: whether it must be a whole number without sign and leading zeros.
      size: bytes in the key, None if as long as the value.
      pad: the byte that fills up to `size`.
      align_left: whether the value is left of its padding.
      case: "lower", "upper" or None for as it is.
    """

    kind: ClassVar[str] = "field"
    name: str
    is_uint: bool = False
    size: int | None = None
    pad: str = " "
    align_left: bool = True
    case: str | None = None

    @classmethod
    def read(cls, content: object, place: Location, fields: KeyFields) -> Field:
        options = read(_FieldOptions, content, place)
        is_uint = options.type == "uint"
        pad = ("0" if is_uint else " ") if options.pad is None else options.pad
        align_left = (options.align or ("right" if is_uint else "left")) == "left"
        if len(pad.encode()) != 1:
            raise place.problem("pad", f"pad = {pad!r} must be one ASCII character")
        if is_uint and (align_left or pad != "0"):
            raise place.problem(
                "align", 'a uint is aligned right and padded with "0": else it would not sort'
            )
        case = None if options.case == "keep" else options.case
        return cls(options.field, is_uint, options.width, pad, align_left, case)

    @property
    def stored_field(self) -> str:
        return self.name

    @property
    def is_exact(self) -> bool:
        return self.case is None

    def render(self, renderer: Renderer) -> pa.Array:
        coded = renderer.batch.texts(self.name).dictionary_encode()
        values = self.folded(coded.dictionary)
        separator = renderer.separator.decode() if self in renderer.key else ""
        good = self._storable(values, separator)
        if self.size is not None:
            pad = pc.ascii_rpad if self.align_left else pc.ascii_lpad
            values = pad(values, self.size, self.pad)
        indices = coded.indices.fill_null(-1).to_numpy()
        usable = np.append(good, False)[indices]
        for record in np.flatnonzero(~usable).tolist():
            text = None if indices[record] < 0 else coded.dictionary[int(indices[record])].as_py()
            renderer.rejections.add(record, Reason.SERIES_NOT_STORABLE, self._why(text, separator))
        return pc.fill_null(values.cast(pa.binary()).take(coded.indices), b"")

    def explain(self) -> str:
        kind = "whole number" if self.is_uint else "text"
        width = "as long as it is" if self.size is None else f"{self.size} bytes, padded with {self.pad!r}"
        return f"{self.name}: {kind}, {width}"

    def value(self, piece: bytes) -> str:
        text = piece.decode()
        if self.size is not None:
            text = text.rstrip(self.pad) if self.align_left else text.lstrip(self.pad)
        return text or ("0" if self.is_uint else "")

    def certainty(self, name: str, separator: bytes, key: Sequence[KeyPart]) -> Told:
        return Told.YES if self.name == name else Told.NO

    def example(self) -> Mapping[str, str]:
        return {self.name: ("987654" if self.is_uint else self.name.lower())[: self.size]}

    def folded(self, texts: pa.Array) -> pa.Array:
        """string[n]: the texts in the case in which the key holds them.

        The only place that folds case: character by character, where Python makes two of some (SS of ß).
        """
        if self.case is None:
            return texts
        return pc.utf8_lower(texts) if self.case == "lower" else pc.utf8_upper(texts)

    def _storable(self, values: pa.Array, separator: str) -> Bools:
        """bool[k]: which texts the part can hold so that they come back as they were."""
        sizes = pc.binary_length(values)
        good = pc.greater(sizes, 0)
        if separator:
            good = pc.and_(good, pc.invert(pc.match_substring(values, separator)))
        if self.is_uint:
            good = pc.and_(good, pc.match_substring_regex(values, "^(0|[1-9][0-9]*)$"))
        if self.size is not None:
            good = pc.and_(good, pc.less_equal(sizes, self.size))
            if not self.is_uint:
                edge = pc.ends_with if self.align_left else pc.starts_with
                good = pc.and_(good, pc.invert(edge(values, self.pad)))
        return good.to_numpy(zero_copy_only=False)

    def _why(self, text: str | None, separator: str) -> str:
        """Why a text cannot be stored by the part."""
        if not text:
            return f"{self.name} is {'missing' if text is None else 'empty'}, and the key needs it"
        short = text if len(text) <= 80 else text[:80] + "..."
        shown = f"{self.name} {short!r}"
        if separator and separator in text:
            return f"{shown} contains the separator {separator!r}"
        if self.is_uint and not (text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")):
            return f"{shown} is not a whole number without sign and leading zeros"
        if self.size is not None and len(text.encode()) > self.size:
            return f"{shown} is longer than {self.size} bytes"
        return f"{shown} {'ends' if self.align_left else 'begins'} with {self.pad!r}, which pads it"


class _FieldOptions(Options, frozen=True):
    field: str
    type: Literal["text", "uint"] = "text"
    width: Count | None = None
    pad: str | None = None
    align: Literal["left", "right"] | None = None
    on_overflow: Literal["reject"] = "reject"
    case: Literal["keep", "lower", "upper"] = "keep"
