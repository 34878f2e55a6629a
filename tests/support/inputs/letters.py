"""Dead letters written by hand, as a program that is not ours might write them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def base64_text(raw: bytes) -> str:
    """Bytes as a letter has them."""
    return base64.b64encode(raw).decode()


def row_payload(table: str, key: bytes, cells: Sequence[tuple[str, bytes, int, bytes]]) -> str:
    """The payload of a rejected row.

    Args:
      cells: (family, qualifier, timestamp in ms, value) of each.
    """
    return json.dumps(
        {
            "table": table,
            "key": base64_text(key),
            "cells": [
                {
                    "family": family,
                    "qualifier": base64_text(qualifier),
                    "timestamp_ms": timestamp_ms,
                    "value": base64_text(value),
                }
                for family, qualifier, timestamp_ms, value in cells
            ],
        }
    )


def letter(payload: str, stage: str = "write", reason: str = "write-refused", **more: object) -> Json:
    """A dead letter; `more` replaces or adds fields."""
    return {
        "reason": reason,
        "message": "no",
        "stage": stage,
        "source": "somewhere",
        "offset": -1,
        "arrival_ms": -1,
        "time_ms": 1,
        "payload": payload,
        **more,
    }


def write_letters(path: Path, letters: Sequence[Json | bytes]) -> Path:
    """A file of letters; those that are bytes stand there as they are."""
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in letters]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read_letters(folder: Path, prefix: str) -> list[Json]:
    """The letters in the files whose names begin so."""
    paths = sorted(folder.glob(f"{prefix}*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]


def payload_of(rejected: Json) -> bytes:
    """The original bytes that a letter holds."""
    if "payload" in rejected:
        return str(rejected["payload"]).encode()
    return base64.b64decode(rejected["payload_base64"])
