"""The JSON of a TSD against Java's own texts, and against a slow writer of its rules."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits import java_text
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.stores.opentsdb.meta_documents import TsMeta, UidMeta

JAVA = {
    0.0: "0.0",
    1.0: "1.0",
    100.0: "100.0",
    -2.5: "-2.5",
    123456.789: "123456.789",
    9999999.0: "9999999.0",
    1e7: "1.0E7",
    12345678.9: "1.23456789E7",
    1e21: "1.0E21",
    1.5e300: "1.5E300",
    0.001: "0.001",
    0.00123: "0.00123",
    0.0001: "1.0E-4",
    1.23e-5: "1.23E-5",
    1.7976931348623157e308: "1.7976931348623157E308",
    math.inf: '"Infinity"',
    -math.inf: '"-Infinity"',
}
"""What java.lang.Double.toString says, and Jackson's quotes where there is no number in JSON."""


@pytest.mark.parametrize(("number", "text"), JAVA.items())
def test_doubles(number: float, text: str) -> None:
    assert java_text.java_double(number) == text


def test_doubles_without_equals() -> None:
    assert java_text.java_double(math.nan) == '"NaN"'
    assert java_text.java_double(-0.0) == "-0.0"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_is_read_back(number: float) -> None:
    text = java_text.java_double(number)
    assert float(text) == number
    whole, _, exponent = text.lstrip("-").partition("E")
    before, after = whole.split(".")
    assert after
    if 1e-3 <= abs(number) < 1e7 or number == 0:
        assert not exponent
    else:
        assert before in "123456789"
        assert int(exponent) == math.floor(math.log10(abs(number))) or abs(number) < 1e-300


def plain_text(text: str) -> str:
    """A text as Jackson escapes it, character by character (JsonStringEncoder, CharTypes)."""
    named = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
    out = []
    for character in text:
        if character in named:
            out.append(named[character])
        elif ord(character) < 32:
            out.append(f"\\u{ord(character):04X}")
        elif ord(character) > 0xFFFF:  # UTF8JsonGenerator writes surrogates as escapes
            high, low = divmod(ord(character) - 0x10000, 0x400)
            out.append(f"\\u{0xD800 + high:04X}\\u{0xDC00 + low:04X}")
        else:
            out.append(character)
    return '"' + "".join(out) + '"'


TEXTS = st.text(st.characters(exclude_categories=("Cs",)))


@given(TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS) | st.none(), st.integers(0, 2**40))
def test_texts_of_any_letters_are_stored_and_read_back(
    name: str, notes: str, custom: dict[str, str] | None, created: int
) -> None:
    made = UidMeta("tagv", created, name, "", notes, custom)
    raw = made.to_bytes()
    fields = (
        "null"
        if custom is None
        else "{" + ",".join(f"{plain_text(key)}:{plain_text(text)}" for key, text in custom.items()) + "}"
    )
    assert raw.decode() == (
        f'{{"type":"TAGV","displayName":{plain_text(name)},"description":"","notes":{plain_text(notes)},'
        f'"created":{created},"custom":{fields}}}'
    )
    assert UidMeta.from_bytes("tagv", raw) == made
    assert json.loads(raw)["notes"] == notes


@pytest.mark.parametrize("text", ["😀", "日本", "größe", "\x00", "\x1f\x7f", 'a"\\/'])
def test_no_letter_becomes_a_question_mark(text: str) -> None:
    made = TsMeta(b"\0\0\1", 1, description=text, custom={text: text})
    assert b"?" not in made.to_bytes()
    found = TsMeta.from_bytes(b"\0\0\1", made.to_bytes())
    assert (found.description, found.custom) == (text, {text: text})
    assert found.to_bytes() == made.to_bytes()


@pytest.mark.parametrize("place", ["description", "custom key", "custom value"])
def test_half_a_surrogate_pair_is_rejected(place: str) -> None:
    """A TSD, whose texts are UTF-16, would store it as `?`."""
    half = "\ud83d"
    custom = {"custom key": {half: ""}, "custom value": {"a": half}}.get(place)
    made = TsMeta(b"\0\0\1", 1, description="" if custom else half, custom=custom)
    with pytest.raises(RejectedError) as rejected:
        made.to_bytes()
    assert rejected.value.reason is Reason.BAD_ENCODING
