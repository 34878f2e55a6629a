"""Vectors of KairosDB's formats, and what is compared of a point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.schema.stores import plain_kairosdb as plain
from timebeam.schema.core.points import PointBatch

VECTORS = json.loads((Path(__file__).parents[2] / "golden/kairosdb/vectors.json").read_text())["vectors"]


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(vector, id=vector["id"]) for vector in VECTORS if vector["kind"] == kind]


def stored(batch: PointBatch) -> list[dict[str, Any]]:
    """Points as the vectors have them, without ttl."""
    found = []
    for series, time_ms, value in batch.points():
        assert not isinstance(value, bytes)
        data_type, raw = plain.value_bytes(value)
        tags = dict(series.tags)
        point = {"metric": series.metric, "tags": tags, "timestamp": time_ms, "data_type": data_type}
        found.append({**point, "value_hex": raw.hex()})
    return found


def without_ttl(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in point.items() if key != "ttl"} for point in points]


def bits_of(batch: PointBatch) -> list[object]:
    """Everything of the points that a layout sees."""
    columns = (batch.times_ms, batch.in_ms, batch.kinds)
    kept = zip(*(column.tolist() for column in columns), strict=True)
    values = [batch.value(i) if kind == 2 else int(batch.bits[i]) for i, kind in enumerate(batch.kinds)]
    return [
        (batch.series[number], *rest, value)
        for number, rest, value in zip(batch.index.tolist(), kept, values, strict=True)
    ]
