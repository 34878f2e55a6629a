"""Fixtures of the fault tests: a seed that is printed, tables, and writers that send small requests.

Pass conditions and numbers are those of the fault test list: "equal" means that the tables hold what
`tests.support.model` makes of the input, each cell in one version, and with `--packing points` the
same bytes.
"""

from __future__ import annotations

import functools
import os

import pytest
from apache_beam.io.gcp.bigtableio import WriteToBigTable

from tests.support.stored import Store
from timebeam.transforms.ingest import beam_writer, write_packed_rows


@pytest.fixture
def seed() -> int:
    """The seed of a test's input and faults; TIMEBEAM_SEED sets another one."""
    value = int(os.environ.get("TIMEBEAM_SEED", "20261121"))
    print(f"TIMEBEAM_SEED={value}")
    return value


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    """New tables."""
    return Store.create(bigtable, prefix)


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both writers send many requests of about a hundred rows instead of one."""
    monkeypatch.setattr(write_packed_rows, "BUFFER_BYTES", 10_000)
    monkeypatch.setattr(beam_writer, "WriteToBigTable", functools.partial(WriteToBigTable, flush_count=100))
