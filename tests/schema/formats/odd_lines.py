"""Random lines of the line formats, good and odd, for the test that both paths read them alike.

A block is made from a few shapes (templates with a place for the time and one for the value), so
that the columnar path meets the same skeleton again with other numbers, good and bad ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

Shape = Callable[[str, str], bytes]
"""A template: the text of a timestamp and of a value to a line without its newline."""

_GOOD_TIMES = (
    lambda r: str(r.randrange(1_000_000_000, 4_294_967_296)),
    lambda r: str(r.randrange(1_000_000_000_000, 4_294_967_296_000)),
)
_ODD_TIMES = (
    *("0", "1", "-5", "123456789", "12345678901", "123456789012", "12345678901234", "", "null", "now"),
    *("4294967295", "4294967296", "4294967295999", "4294967296000", "9999999999999", "1e9", "1.3569984e9"),
    *(
        "0356998400",
        "0000356998400",
        "0x50e22700",
        "0x013bf3b0a100",
        "+356998400",
        "-356998400",
        "135699840_",
    ),
    *("1356998400.250", "1356998400.25", "1356998400.", "1.356998400", ".356998400", "abcdefghi9"),
    *("1356998400x", "13569984 00", "1 23456789", "1987654321", "1356998400\u0660", "135699840\u0661"),
)
_GOOD_VALUES = (
    lambda r: str(r.randrange(-200, 200)),
    lambda r: str(r.randrange(-(1 << 63), 1 << 63)),
    lambda r: repr(r.uniform(-1e6, 1e6)),
    lambda r: repr(r.uniform(-10, 10) * 10.0 ** r.randrange(-320, 300)),
    lambda r: f"{r.uniform(-10, 10):.{r.randrange(1, 25)}f}",
)
_ODD_VALUES = (
    *("0", "-0", "0.0", "-0.0", "007", "-007", "00.5", "0e5", "0e0", "0x10", "-0x10", "0x1.8p1", "1_000"),
    *(
        "+7",
        "+7.5",
        "1.",
        "-1.",
        ".5",
        "-.5",
        "-",
        "+",
        ".",
        "e5",
        "1e",
        "1e5",
        "1E+5",
        "1e-5",
        "1e5e5",
        "1.e5",
    ),
    *(
        "1e400",
        "-1e400",
        "1e-400",
        "4.9e-324",
        "2.2250738585072011e-308",
        "1.7976931348623159e308",
        "1e10000",
    ),
    *("NaN", "nan", "Infinity", "-Infinity", "inf", "1.5f", "1.5d", "1L", "1.5.5", "1-5", "1.5-3", "1e5.5"),
    *("999999999999999999", "-999999999999999999", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "-9223372036854775809", "12345678901234567890", "1" * 23, "1" * 24, "1" * 45),
    *("0.12345678901234567890123", "123456789012345678901.5", "0." + "1" * 40, "1e" + "0" * 30 + "1"),
    *(
        "",
        " 5",
        "5 ",
        "5\t",
        "5\r",
        "5,5",
        "5}",
        '5"',
        "null",
        "true",
        "[5]",
        "{}",
        "5\u0660",
        "\u0665",
        "5\x00",
    ),
    *("4815162342", "+4815162342", "481516234.2e1", "5\\u0030"),
)


def time_text(r: random.Random) -> str:
    """A timestamp, mostly a good one."""
    return r.choice(_GOOD_TIMES)(r) if r.random() < 0.85 else r.choice(_ODD_TIMES)


def value_text(r: random.Random) -> str:
    """A value, mostly a good one."""
    return r.choice(_GOOD_VALUES)(r) if r.random() < 0.8 else r.choice(_ODD_VALUES)


def text_shape(r: random.Random) -> Shape:
    """The template of a telnet or import line; every other one a plain one."""
    if r.random() < 0.5:
        return lambda time, value: f"put sys.cpu {time} {value} host=web{r.randrange(3)}".encode()
    word = ("sys.cpu", "m", "1356998400", "größe", "put", "a=b", "", "1", "0.5")
    metric = word[0] if r.random() < 0.7 else r.choice(word)
    tags = r.choice(
        (
            *("host=web01", "host=web01 dc=lga", "host=a  dc=b", "host=a host=a", "host=a host=b", ""),
            *("host", "=a", "host=", "host=a=b", "host=é", "host=a ", "t=1356998400", "v=5 w=6", " host=a"),
            *(f"host=web{r.randrange(40)}", "host=a\tb", "host=1987654321 dc=4815162342"),
        )
    )
    start = r.choice(("put ", "put ", "", "", "put  ", " ", "PUT ", "put\t", "\t"))
    gaps = [" " if r.random() < 0.93 else r.choice(("  ", "\t", "", " \t ")) for _ in range(3)]
    end = "\r" if r.random() < 0.2 else ""
    dot = r.choice((".250", ".000", ".5", ".")) if r.random() < 0.05 else ""

    def line(time: str, value: str) -> bytes:
        return f"{start}{metric}{gaps[0]}{time}{dot}{gaps[1]}{value}{gaps[2]}{tags}{end}".encode()

    return line


_EXTRAS = (
    '"x":{"timestamp":1356998401,"value":7}',
    '"x":{"timestamp":@T,"value":@V}',
    '"timestamp":1356998402',
    '"value":9',
    '"\\u0074imestamp":1356998403',
    '"\\u0076alue":"5"',
    '"x":"\\"timestamp\\":1356998404,"',
    '"x":"timestamp","y":"value"',
    '"x":[{"value":3},"timestamp"]',
    '"x":"@V"',
    '"":null',
    '"n":1987654321,"o":4815162342',
    '"metric":"other"',
    '"x":"é\\u00e9"',
    '"x":"\udcff"',
    '"x":1e999',
    '"x":NaN',
    '"x":"\\ud800"',
)
_TAGS = (
    '{"host":"web01"}',
    '{"dc":"lga","host":"web01"}',
    '{ "host" : "web01" }',
    '{"timestamp":"1356998405","value":"5"}',
    '{"value":"@V","timestamp":"@T"}',
    '{"host":5}',
    '{"host":@V}',
    '{"host":true}',
    '{"host":"a","host":"a"}',
    '{"host":"a","\\u0068ost":"b"}',
    '{"host":"größe"}',
    '{"host":"\udcff"}',
    '{"host":{"a":"b"}}',
    "{}",
    "[]",
    "null",
    '{"host":""}',
)
_WRAPS = (
    *(
        ("", ""),
        ("", ""),
        ("", ""),
        ("", "\r"),
        ("", " "),
        (" ", ""),
        ("[", "]"),
        ("[ ", " ]"),
        ("[", ""),
        ("", "]"),
    ),
    *(("", ","), ("", ' {"metric":'), ("[{},", "]"), ("", "x"), ("\ufeff", ""), ("[", "] ]"), ("[", ",]")),
    ('[{"metric":"a","timestamp":1356998406,"value":1,"tags":{"h":"é"}}, ', "]"),
    ("[", ',{"metric":"a","timestamp":1356998406,"value":1,"tags":{"h":"é"}},5]'),
    ("[", '] {"metric":"a","timestamp":1356998406,"value":1,"tags":{"h":"b"}}'),
)


def json_shape(r: random.Random) -> Shape:
    """The template of a JSON line."""

    def colon() -> str:
        return ":" if r.random() < 0.6 else r.choice((": ", ":  ", " :", " : ", ":\t"))

    time, value = (mark if r.random() < 0.7 else f'"{mark}"' for mark in ("@T", "@V"))
    metric = (
        '"sys.cpu"'
        if r.random() < 0.8
        else r.choice(('""', "null", "5", '"m\\u0065"', '"m\\ud800"', '"größe"', '"\udcff"'))
    )
    tags = r.choice(_TAGS[:3]) if r.random() < 0.6 else r.choice(_TAGS)
    members = [
        f'"metric"{colon()}{metric}',
        f'"timestamp"{colon()}{time}',
        f'"value"{colon()}{value}',
        f'"tags"{colon()}{tags}',
    ]
    if r.random() < 0.3:
        members += r.sample(_EXTRAS, r.randrange(1, 3))
    if r.random() < 0.6:
        r.shuffle(members)
    if r.random() < 0.05:
        members.pop()
    wrap = r.choice(_WRAPS[:6]) if r.random() < 0.7 else r.choice(_WRAPS)
    template = wrap[0] + "{" + r.choice((",", ",", ", ")).join(members) + "}" + wrap[1]

    def line(time: str, value: str) -> bytes:
        return template.replace("@T", time).replace("@V", value).encode("utf-8", "surrogateescape")

    return line


def corrupt(r: random.Random, line: bytes) -> bytes:
    """A line with a slice of it lost, doubled or overwritten."""
    start = r.randrange(len(line) + 1)
    end = min(len(line), start + r.choice((1, 1, 1, 2, 5, 1000)))
    what = r.choice(
        (b"", line[start:end] * 2, bytes(r.choices(b'0159-+.eEx ,:"{}[]\\\r\n\t\x00\xff\xc3', k=1)))
    )
    return line[:start] + what + line[end:]


def block(r: random.Random, make_shape: Callable[[random.Random], Shape], lines: int) -> bytes:
    """Lines of a few shapes, with one of the ends that a block can have."""
    shapes = [make_shape(r) for _ in range(r.choice((1, 2, 2, 8)))]
    out = []
    for _ in range(lines):
        line = r.choice(shapes)(time_text(r), value_text(r))
        if r.random() < 0.08:
            line = corrupt(r, line)
        if r.random() < 0.03:
            line = r.choice((b"", b"\r", b" ", b"         ", b"\t" * 30, b"x", b"12345678", b"\xff" * 9))
        out.append(line)
    return b"\n".join(out) + r.choice((b"", b"\n", b"\r\n", b"\n\n"))


def document(r: random.Random) -> bytes:
    """JSON spread over several lines, as people write it; now and then corrupt behind the first line."""
    points = []
    for _ in range(r.choice((1, 1, 3))):
        point = {
            "metric": r.choice(("sys.cpu", "größe", "")),
            "timestamp": r.choice((1356998400, 1356998400250, 0)),
            "value": r.choice((5, -0.5, "7", "x", 1e300)),
            "tags": r.choice(({"host": "a"}, {}, {"host": "é", "dc": "b"})),
        }
        points.append(dict(r.sample(sorted(point.items()), 4)))
    content = points[0] if len(points) == 1 and r.random() < 0.5 else points
    text = json.dumps(content, indent=r.choice((0, 1, 4)), ensure_ascii=r.random() < 0.5).encode()
    text = text.replace(b"\n", r.choice((b"\n", b"\r\n")))
    first, newline, rest = text.partition(b"\n")
    rest = corrupt(r, rest) if r.random() < 0.3 else rest
    return r.choice((b"", b"", b"\n", b" \n")) + first + newline + rest + r.choice((b"", b"\n"))
