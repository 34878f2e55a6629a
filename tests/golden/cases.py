"""The vectors of a real TSD (tests/golden/opentsdb), as inputs and cells that tests can use."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from timebeam.schema.core.point_fragments import Name
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import Decimals, OpenTsdbOptions

HERE = Path(__file__).parent / "opentsdb"


@dataclasses.dataclass(frozen=True)
class Case:
    """One case: what was sent to the TSD, and what it stored."""

    group: str
    name: str
    steps: list[dict[str, Any]]
    uids: dict[Name, bytes]
    cells: set[tuple[bytes, bytes, bytes]]
    """(row key, qualifier, value) of the data table."""
    config: dict[str, Any]

    def messages(self) -> list[tuple[str, bytes]]:
        """(format, text) of each step that puts points."""
        found = []
        for step in self.steps:
            if "telnet" in step:
                found.append(("opentsdb-text", "\n".join(step["telnet"]).encode()))
            elif step["http"][1].startswith("/api/put"):
                body = step["http"][2]
                text = body if isinstance(body, str) else json.dumps(body)
                found.append(("opentsdb-json", text.encode()))
        return found

    def layout(self, format_name: str) -> OpenTsdb:
        """The layout with the options that the TSD had, writing decimals as its front end does."""
        metric = int(self.config.get("tsd.storage.uid.width.metric", 3))
        tagk = int(self.config.get("tsd.storage.uid.width.tagk", 3))
        tagv = int(self.config.get("tsd.storage.uid.width.tagv", 3))
        return OpenTsdb(
            OpenTsdbOptions(
                salt_width=int(self.config.get("tsd.storage.salt.width", 0)),
                salt_buckets=int(self.config.get("tsd.storage.salt.buckets", 20)),
                uid_width_metric=metric,
                uid_width_tagk=tagk,
                uid_width_tagv=tagv,
                max_tags=int(self.config.get("tsd.storage.max_tags", 8)),
                decimals=Decimals.DOUBLE if format_name == "opentsdb-json" else Decimals.EXACT,
            )
        )


def cases(group: str) -> list[Case]:
    """All cases of one file."""
    content = json.loads((HERE / f"{group}.json").read_text())
    return [
        Case(
            group,
            case["name"],
            case["steps"],
            {
                Name(kind, name): bytes.fromhex(uid)
                for kind, names in case["uids"].items()
                for name, uid in names.items()
            },
            {
                (bytes.fromhex(cell[1]), bytes.fromhex(cell[3]), bytes.fromhex(cell[4]))
                for cell in case["cells"]
                if cell[0] == "tsdb" and cell[2] == "t"
            },
            content["config"],
        )
        for case in content["cases"]
    ]


def units(operation: str) -> list[dict[str, Any]]:
    """The facts of OpenTSDB's unit tests about one operation."""
    vectors = json.loads((HERE / "units.json").read_text())["vectors"]
    return [vector for vector in vectors if vector["op"] == operation]
