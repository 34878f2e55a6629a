"""Rows of OpenTSDB's table that are cut into chunks."""

from __future__ import annotations

import pytest

from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read import chunks
from timebeam.transforms.read.chunks import Chunk, hour_chunks

TARGET = Target("p", "i")

HOUR, DAY = 3600, 86_400

METRICS = {"a": bytes([0, 0, 1]), "b": bytes([0, 0, 2])}

START = 1_772_236_800


def row_keys(layout: OpenTsdb, hours: int, series: int) -> list[bytes]:
    """Keys of rows of two metrics, from an hour before START on."""
    made = []
    for uid in METRICS.values():
        for number in range(series):
            key = keys.series_key(layout.options, uid, [(bytes([0, 0, 1]), number.to_bytes(3, "big"))])
            made += [keys.row_key(key, START + hour * HOUR) for hour in range(-1, hours)]
    return sorted(made)


def cut(
    layout: OpenTsdb, samples: list[tuple[bytes, int]], chunk_bytes: int, start: int, end: int, most: int = 50
) -> list[Chunk]:
    """The chunks of a table that is sampled so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(chunks, "_MOST_METRICS", most)
        return list(hour_chunks(samples, layout, METRICS, start, end))
