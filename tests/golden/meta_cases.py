"""What a real TSD stored beside the points (tests/golden/opentsdb/meta_*.json), as cells of any table."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import NamedTuple

from tests.golden.cases import HERE, Case, cases

GROUPS = ("meta_full", "meta_realtime", "meta_tracking")


class AnyCell(NamedTuple):
    """One cell, without its timestamp."""

    table: str
    key: bytes
    family: str
    qualifier: bytes
    value: bytes


@dataclasses.dataclass(frozen=True)
class MetaCase:
    """One case, with the cells of all tables."""

    case: Case
    cells: frozenset[AnyCell]

    def of(self, table: str) -> set[AnyCell]:
        """The cells of one table."""
        return {cell for cell in self.cells if cell.table == table}

    @property
    def uid_meta(self) -> set[AnyCell]:
        """The metadata of names."""
        return {cell for cell in self.of("tsdb-uid") if cell.qualifier.endswith(b"_meta")}


def meta_cases(group: str) -> list[MetaCase]:
    """All cases of one file."""
    content = json.loads((HERE / f"{group}.json").read_text())
    return [
        MetaCase(
            case,
            frozenset(
                AnyCell(cell[0], bytes.fromhex(cell[1]), cell[2], *map(bytes.fromhex, cell[3:]))
                for cell in raw["cells"]
            ),
        )
        for case, raw in zip(cases(group), content["cases"], strict=True)
    ]


def created(value: bytes) -> int:
    """When the metadata in a cell was made, in seconds."""
    found = re.search(rb'"created":(\d+),', value)
    assert found is not None
    return int(found[1])


def created_aside(cell: AnyCell) -> AnyCell:
    """A cell whose time of creation is 0; every other byte stays."""
    return cell._replace(value=re.sub(rb'"created":\d+,', b'"created":0,', cell.value))
