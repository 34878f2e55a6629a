"""Records of line protocol over several lines: a newline in a string does not end a record.

    log,host=web01 text="first line
    second line",count=2i 1556813561098000000

A quote may also be missing, and the next one be lines away. So lines are joined only if they are one record
from its measurement to its end; all others are read as they stand.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Int64s

_OPENING = b'="'
_HEAD_END = re.compile(rb"(?<!\\) |[\x00-\x1f\x7f]")
_NAME_END = re.compile(rb"(?<!\\)[,= ]|[\x00-\x1f\x7f]")
_VALUE_END = re.compile(rb"[\x00-\x20\x7f,]")
_IN_STRING = re.compile(rb'\\.|"', re.DOTALL)
_RECORD_END = re.compile(rb" *(?:-?[0-9]+)? *\r?(?=\n|\Z)")
_SCANNED = 4
"""Bytes that are scanned for each byte of the text: beyond them, lines are read as they stand."""


class _Record(NamedTuple):
    """What was seen of a record: where it ends, -1 if it is none, and the first byte that was not seen."""

    end: int
    position: int


def joined_lines(text: bytes, starts: Int64s, ends: Int64s, messages: Int64s) -> tuple[Int64s, Int64s]:
    """(starts, ends) of lines, those of a record over several lines as one.

    Args:
      starts, ends: int64[n], spans of lines.
      messages: int64[m], where the messages begin that the text is joined from; none goes on in the next.
    """
    if _OPENING not in text:
        return starts, ends
    openings = np.fromiter((match.start() for match in re.finditer(_OPENING, text)), np.int64)
    candidates = np.unique(np.searchsorted(starts, openings, "right") - 1)
    begins_record = np.ones(len(starts), np.bool_)
    ends = ends.copy()
    free, unspent = 0, _SCANNED * len(text)
    for line in candidates[candidates >= 0].tolist():
        if line < free or unspent <= 0:
            continue
        number = int(np.searchsorted(messages, starts[line], "right"))
        limit = int(messages[number]) - 1 if number < len(messages) else len(text)
        scan = _scanned(text, int(starts[line]), limit)
        unspent -= scan.position - int(starts[line])
        last = int(np.searchsorted(starts, scan.end)) - 1
        if last > line:
            ends[line] = ends[last]
            begins_record[line + 1 : last + 1] = False
            free = last + 1
    return starts[begins_record], ends[begins_record]


def _scanned(text: bytes, position: int, limit: int) -> _Record:
    """The record that begins at a position and ends before `limit`."""
    while text[position : position + 1] == b" ":
        position += 1
    head = _HEAD_END.search(text, position, limit)
    if head is None or head[0] != b" " or text[position : position + 1] == b"#":
        return _Record(-1, position)
    position = head.start()
    while text[position : position + 1] == b" ":
        position += 1
    while True:
        equals = _NAME_END.search(text, position, limit)
        if equals is None or equals[0] != b"=" or equals.start() == position:
            return _Record(-1, position)
        position = equals.end()
        if text[position : position + 1] == b'"':
            marks = _IN_STRING.finditer(text, position + 1, limit)
            position = next((mark.end() for mark in marks if mark[0] == b'"'), -1)
            if position < 0:
                return _Record(-1, limit)
        else:
            end = _VALUE_END.search(text, position, limit)
            position = limit if end is None else end.start()
        if text[position : position + 1] != b"," or position >= limit:
            break
        position += 1
    end = _RECORD_END.match(text, position, limit)
    return _Record(-1 if end is None else end.end(), position)
