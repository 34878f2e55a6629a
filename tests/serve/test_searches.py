"""Lookups and suggestions count what they read, also the rows that add nothing to the answer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import ingest
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond
from timebeam.transforms.query.budget import Budget, Meter

ROWS = 50
STEP_S = 60 * 86_400
"""Further apart than the rows of any layout are long."""

BUDGET = Budget(1_000, 1_000, 1_000, 1 << 20, 60.0)
LOOKUP = "/api/search/lookup?m=sys.load{host=a}&limit=1"
SUGGEST = "/api/suggest?type=metrics&q=sys"


def stored(bigtable: tuple[str, str], folder: Path, variant: str) -> Api:
    """One series that has many rows."""
    store = AnyStore.create(bigtable, f"{folder.name}-", variant)
    path = folder / "points.txt"
    seconds = range(1_300_000_000, 1_300_000_000 + ROWS * STEP_S, STEP_S)
    path.write_text("".join(f"put sys.load {second} 1 host=a\n" for second in seconds))
    flags = (*store.flags, *store.auto_create, "--format=opentsdb-text")
    assert ingest(folder, *flags, "--input", path).letters == []
    return Api(store.target, store.layout)


def answer(api: Api, url: str, **budget: float) -> tuple[int, Any, Meter]:
    meter = Meter(dataclasses.replace(BUDGET, **budget))
    response = respond(api.for_request(meter), request_of("GET", url))
    return response.status, response.body, meter


@pytest.mark.parametrize(
    ("variant", "url"),
    [
        ("opentsdb", LOOKUP),
        ("heroic-readable", LOOKUP),
        ("heroic-readable", SUGGEST),
        ("kairosdb-milliseconds", SUGGEST),
    ],
)
def test_every_row_that_is_read_counts(
    bigtable: tuple[str, str], tmp_path: Path, variant: str, url: str
) -> None:
    api = stored(bigtable, tmp_path, variant)
    status, body, meter = answer(api, url)
    assert (status, len(body if url == SUGGEST else body["results"])) == (200, 1)
    assert meter.rows >= ROWS
    status, body, meter = answer(api, url, rows=ROWS // 2)
    assert (status, meter.rows) == (413, ROWS // 2 + 1)
    assert f"more than {ROWS // 2} rows, the budget" in body["error"]["message"]
