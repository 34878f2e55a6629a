"""Hypothesis strategies of the columns of a row of OpenTSDB."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import strategies as st

from tests.schema.layouts import plain_opentsdb as plain

FLAGS = (0, 1, 3, 7, 11, 15)


def qualifier_of(element: plain.Element) -> bytes:
    """The qualifier of one point."""
    if element.in_ms:
        return struct.pack(">I", 0xF0000000 | element.offset_ms << 6 | element.flags)
    return struct.pack(">H", element.offset_ms // 1000 << 4 | element.flags)


@st.composite
def elements(draw: st.DrawFn, flags: Sequence[int] = FLAGS) -> plain.Element:
    """One point, mostly near the others."""
    in_ms = draw(st.booleans())
    offset = draw(st.integers(0, 4) | st.sampled_from((80, 95, 96, 3599))) * 1000
    if in_ms:
        offset += draw(st.sampled_from((0, 0, 1, 999)))
    flag = draw(st.sampled_from(flags))
    width = (flag & 7) + 1
    return plain.Element(offset, in_ms, flag, draw(st.binary(min_size=width, max_size=width)))


@st.composite
def columns(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A plain point, a compacted column (sorted or not, with a trailing byte or not), or an append column."""
    kind = draw(st.sampled_from(("plain", "compacted", "append")))
    points = draw(st.lists(elements(), min_size=1 if kind == "plain" else 2, max_size=6))
    if kind == "plain":
        return qualifier_of(points[0]), points[0].value
    if kind == "append":
        name = draw(st.sampled_from((b"\x05\x00\x00", b"\x05\x00\x01", b"\x05\x2a\x2a")))
        return name, b"".join(qualifier_of(point) + point.value for point in points)
    if draw(st.booleans()):
        points.sort()
    trailer = draw(st.sampled_from((b"\x00", b"\x01", b"")))
    return b"".join(map(qualifier_of, points)), b"".join(point.value for point in points) + trailer
