"""A new kind of key part is one class: declared, written, read, selected by and checked."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa
import pytest

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rows import Row
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.declared import keys
from timebeam.schema.stores.declared.audit_records import audit_rows
from timebeam.schema.stores.declared.declaration import Declaration
from timebeam.schema.stores.declared.keys import ranges
from timebeam.schema.stores.declared.language.explain_layout import explain
from timebeam.schema.stores.declared.language.load_declaration import DeclarationError, load
from timebeam.schema.stores.declared.parts.key_part import KeyFields, KeyPart, Renderer, Told
from timebeam.schema.stores.declared.read_records import decode
from timebeam.schema.stores.declared.read_section import Location, Options, read
from timebeam.schema.stores.declared.records import read_json
from timebeam.schema.stores.declared.write_records import rows

DECLARED = """\
[layout.device]
table = "DEVICE"
key = [{ hexadecimal = "D" }, { hash = "md5", of = ["D"], length = 4 }, { time = "T", width = 13 }]
columns = { family = "f", fields = ["V"] }
"""
DIGEST = hashlib.md5(b"0000beef", usedforsecurity=False).hexdigest()[:4].encode()


class _HexadecimalOptions(Options, frozen=True):
    hexadecimal: str


@dataclasses.dataclass(frozen=True, slots=True)
class Hexadecimal(KeyPart):
    """A whole number below 2^32 in 8 hexadecimal digits."""

    kind: ClassVar[str] = "hexadecimal"
    name: str
    size: int = 8

    @classmethod
    def read(cls, content: object, place: Location, fields: KeyFields) -> Hexadecimal:
        return cls(read(_HexadecimalOptions, content, place).hexadecimal)

    @property
    def stored_field(self) -> str:
        return self.name

    @property
    def is_exact(self) -> bool:
        return True

    def render(self, renderer: Renderer) -> pa.Array:
        numbers, good = renderer.batch.integers(self.name)
        for record, (number, is_number) in enumerate(zip(numbers.tolist(), good.tolist(), strict=True)):
            if not is_number or not 0 <= number < 1 << 32:
                renderer.rejections.add(record, Reason.SERIES_NOT_STORABLE, f"{self.name} has no 8 digits")
        return pa.array([b"%08x" % (number & 0xFFFFFFFF) for number in numbers.tolist()], pa.binary())

    def explain(self) -> str:
        return f"{self.name}: 8 hexadecimal digits"

    def value(self, piece: bytes) -> str:
        return str(int(piece, 16))

    def certainty(self, name: str, separator: bytes, key: Sequence[KeyPart]) -> Told:
        return Told.YES if name == self.name else Told.NO

    def example(self) -> dict[str, str]:
        return {self.name: "255"}


@pytest.fixture
def declaration(monkeypatch: pytest.MonkeyPatch) -> Declaration:
    monkeypatch.setattr(keys, "KINDS", (*keys.KINDS, Hexadecimal))
    return load(DECLARED + "allow_overwrite = true\n", "t.toml")


def stored(declaration: Declaration, line: bytes) -> Row:
    (row,), rejected = rows(declaration, read_json(Message(line, arrival_ms=0))[0])
    assert rejected == []
    return row


def test_it_is_written_and_read(declaration: Declaration) -> None:
    (layout,) = declaration.layouts
    row = stored(declaration, b'{"D":48879,"T":1426535612045,"V":1}')
    assert row.key == b"0000beef#" + DIGEST + b"#1426535612045"
    assert decode(layout, row) == [{"D": "48879", "T": 1426535612045, "V": "1"}]
    assert list(audit_rows(layout, [row])) == []


def test_a_read_selects_by_it(declaration: Declaration) -> None:
    assert ranges(declaration.layouts[0], {"D": "48879"}, (5, 7)) == [
        (b"0000beef#" + DIGEST + b"#0000000000005", b"0000beef#" + DIGEST + b"#0000000000007")
    ]


def test_it_is_explained(declaration: Declaration) -> None:
    text = explain(declaration)
    assert "D: 8 hexadecimal digits" in text
    assert "000000ff" in text


def test_what_it_cannot_hold_is_rejected(declaration: Declaration) -> None:
    found, (rejected,) = rows(declaration, read_json(Message(b'{"D":-1,"T":5,"V":1}', arrival_ms=0))[0])
    assert found == []
    assert rejected.message == "table DEVICE: D has no 8 digits"


def test_its_options_are_known_by_name(declaration: Declaration) -> None:
    with pytest.raises(DeclarationError) as caught:
        load(DECLARED.replace('hexadecimal = "D"', 'hexadecimal = "D", width = 4'), "t.toml")
    assert "layout.device.key[0].width: unknown option 'width': known are hexadecimal" in str(caught.value)
