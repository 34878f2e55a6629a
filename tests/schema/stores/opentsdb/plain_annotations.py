"""OpenTSDB's annotations written down a second time: a TSD that takes one request after the other.

From meta/Annotation of OpenTSDB 2.4.1 and docs/spec/opentsdb.md §4.1, by dicts and the json module.
"""

from __future__ import annotations

import json
from typing import Any

from tests.schema.stores.plain_opentsdb import java_bucket

Request = dict[str, Any]
Notes = dict[str, Any]


def carried_out(stored: Notes | None, request: Request) -> Notes | None:
    """What stands in a cell after a request; the request has `method` and, of the rest, what it says."""
    if request["method"] == "DELETE":
        return None
    empty = {"startTime": request["startTime"], "endTime": 0, "description": "", "notes": "", "custom": None}
    base = dict(empty if stored is None or request["method"] == "PUT" else stored)
    if stored is not None:
        base["startTime"] = min(stored["startTime"], request["startTime"])
    for key in ("endTime", "description", "notes", "custom"):
        if request.get(key) or (key == "custom" and request.get(key) is not None):
            base[key] = request[key]
    return base


def json_bytes(notes: Notes, tsuid: str) -> bytes:
    """The value of a cell, by the json module; only for texts without control characters."""
    custom = notes["custom"]
    if custom is not None:
        custom = dict(sorted(custom.items(), key=lambda item: list(item[0].encode("utf-16-be"))))
    members = {"tsuid": tsuid} if tsuid else {}
    members |= {key: notes[key] for key in ("startTime", "endTime", "description", "notes")}
    text = json.dumps(members | {"custom": custom}, separators=(",", ":"), ensure_ascii=False)
    return "".join(_escaped(one) if one > "\uffff" else one for one in text).encode()


def _escaped(character: str) -> str:
    """What Jackson makes of a character beyond U+FFFF: its two UTF-16 units."""
    raw = character.encode("utf-16-be").hex().upper()
    return f"\\u{raw[:4]}\\u{raw[4:]}"


def cell_place(tsuid: str, start: int, salt_width: int = 0) -> tuple[bytes, bytes]:
    """(row key, qualifier), with UIDs of three bytes and 20 buckets."""
    time_ms = start if start >= 1 << 32 else start * 1000
    base_s = time_ms // 1000 - time_ms // 1000 % 3600
    raw = bytes.fromhex(tsuid) or b"\0\0\0"
    salt = java_bucket(raw, 20).to_bytes(salt_width, "big") if salt_width and tsuid else bytes(salt_width)
    # Annotation.getQualifier takes 1,000 off whatever is a multiple of it, seconds too.
    stamp = start if start % 1000 else start // 1000
    column = (stamp % 3_600_000).to_bytes(4, "big") if stamp >> 32 else (stamp % 3600).to_bytes(2, "big")
    return salt + raw[:3] + base_s.to_bytes(4, "big") + raw[3:], b"\x01" + column
