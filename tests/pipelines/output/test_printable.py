"""Control characters of names do not reach the terminal."""

import io
import json
import sys

import pytest

from timebeam.pipelines import cli
from timebeam.pipelines.output.printable import PrintableStream, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sys.load", "sys.load"),
        ("naïve 東京 🙂", "naïve 東京 🙂"),
        ("\x1b[2J", r"\u001b[2J"),
        ("a\nb\tc\rd", r"a\u000ab\u0009c\u000dd"),
        ("\x00\x7f\x9b", r"\u0000\u007f\u009b"),
        ("\u2028\u202e\u2066", r"\u2028\u202e\u2066"),
        ("\ud800", r"\ud800"),
    ],
)
def test_a_name_is_one_line_without_control_characters(text, shown):
    assert printable(text) == shown


def test_a_stream_keeps_line_ends_and_tabs_and_the_meaning_of_json():
    out = io.StringIO()
    names = [chr(code) for code in range(0x100)]
    print("a\tb\n" + json.dumps(names, ensure_ascii=False), file=PrintableStream(out))
    first, second = out.getvalue().splitlines()
    assert first == "a\tb"
    assert json.loads(second) == names
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in second)


def test_what_a_command_prints_passes_through(capsys):
    assert cli.main(["ha\x1b[2Jha"]) == 2
    assert "\x1b" not in capsys.readouterr().err
    assert not isinstance(sys.stdout, PrintableStream)
