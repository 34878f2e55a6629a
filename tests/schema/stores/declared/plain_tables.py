"""Keys of declared tables in plain, slow Python: the oracle of the property tests.

One record at a time, from the declaration's TOML itself: no pyarrow, no numpy, zoneinfo for zones.
"""

from __future__ import annotations

import datetime
import hashlib
import zlib
import zoneinfo
from typing import Any

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(value: int, unit: str) -> int:
    return value * 1000 if unit == "s" else value if unit == "ms" else value // 1000


def bucket_start_ms(time_ms: int, bucket: str, zone: str) -> int:
    """The first instant of a bucket of minutes, hours, days or months, as "15m", "1h", "3d" or "1mo"."""
    count, unit = int(bucket.rstrip("hdmo")), bucket.lstrip("0123456789")
    if unit in ("m", "h"):
        length = count * (3_600_000 if unit == "h" else 60_000)
        return time_ms // length * length
    tz = zoneinfo.ZoneInfo(zone)
    day = (EPOCH + datetime.timedelta(milliseconds=time_ms)).astimezone(tz).date()
    if unit == "mo":
        months = (day.year - 1970) * 12 + day.month - 1
        months -= months % count
        day = datetime.date(1970 + months // 12, months % 12 + 1, 1)
    else:
        day -= datetime.timedelta((day - EPOCH.date()).days % count)
    midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=tz, fold=0)
    return int(midnight.astimezone(UTC).timestamp()) * 1000


def time_text(part: dict[str, Any], value: int) -> bytes:
    unit, zone = part.get("unit", "ms"), part.get("tz", "UTC")
    if "bucket" in part:
        ms = bucket_start_ms(to_ms(value, unit), part["bucket"], zone)
        value = ms // 1000 if unit == "s" else ms if unit == "ms" else ms * 1000
    form = part.get("format", "decimal")
    if "%" in form:
        us = {"s": 10**6, "ms": 1000, "us": 1}[unit] * value
        moment = (EPOCH + datetime.timedelta(microseconds=us)).astimezone(zoneinfo.ZoneInfo(zone))
        # strftime pads the years below 1000 only on some systems; there are none here.
        form = form.replace("%L", f"{moment.microsecond // 1000:03d}")
        return moment.strftime(form).encode()
    value //= part.get("divide", 1)
    if part.get("reverse"):
        value = part["reverse"] - value
    if form == "decimal":
        return b"%0*d" % (part["width"], value)
    return value.to_bytes(4 if form == "be32" else 8, "big")


def field_text(part: dict[str, Any], value: str) -> bytes:
    if part.get("case") in ("lower", "upper"):
        value = getattr(value, part["case"])()
    raw = value.encode()
    if "width" not in part:
        return raw
    if part.get("type") == "uint":
        return raw.rjust(part["width"], b"0")
    pad = part.get("pad", " ").encode()
    return raw.rjust(part["width"], pad) if part.get("align") == "right" else raw.ljust(part["width"], pad)


def fnv1a64(raw: bytes) -> int:
    h = 0xCBF29CE484222325
    for byte in raw:
        h = ((h ^ byte) * 0x100000001B3) % 2**64
    return h


def key(layout: dict[str, Any], record: dict[str, str], payload: bytes = b"") -> bytes:
    """The row key of one record of texts, whose original bytes are the payload."""
    separator = layout.get("separator", "#").encode()
    parts = layout["key"]

    def plain(part: dict[str, Any]) -> bytes:
        if "time" in part:
            return time_text(part, int(record[part["time"]]))
        return field_text(part, record[part["field"]])

    def inputs(of: list[Any]) -> bytes:
        found = []
        for one in of:
            if isinstance(one, dict):
                found.append(plain(one))
                continue
            named = [p for p in parts if one in (p.get("field"), p.get("time"))]
            found.append(plain(named[0]) if named else record[one].encode())
        return separator.join(found)

    pieces = []
    for part in parts:
        if "const" in part:
            pieces.append(part["const"].encode())
        elif "salt" in part:
            raw = inputs(part["salt"])
            hashes = {
                "crc32": zlib.crc32,
                "fnv1a64": fnv1a64,
                "md5": lambda x: int.from_bytes(hashlib.md5(x).digest()[:8], "big"),
            }
            buckets = part["buckets"]
            for time, count in part.get("since", []):
                if int(record["TS"]) >= time:
                    buckets = count
            salt = part.get("base", 0) + hashes[part.get("hash", "crc32")](raw) % buckets
            pieces.append(b"%0*d" % (part.get("width", 1), salt))
        elif "suffix" in part:
            marked = (
                b"-" if record.get(n) is None else b"%d:%s" % (len(record[n].encode()), record[n].encode())
                for n in part["suffix"]
            )
            raw = payload if part["suffix"] == "payload" else b"".join(marked)
            pieces.append((b"%08x" % zlib.crc32(raw))[: part.get("width", 8)])
        elif "of" in part:
            digest = hashlib.new(part["hash"], inputs(part["of"]))
            text = digest.hexdigest().encode() if part.get("encoding", "hex") == "hex" else digest.digest()
            pieces.append(text[: part.get("length", 999)])
        else:
            pieces.append(plain(part))
    return separator.join(pieces)
