"""The rollups that a real TSD stored (tests/golden/opentsdb): what was sent to it, and its cells."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.rollup.config_json import parse_config
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

HERE = Path(__file__).parents[2] / "golden" / "opentsdb"
GROUPS = ("rollup", "rollup_tagraw", "salt_rollup")


@dataclasses.dataclass(frozen=True)
class Sent:
    """One point that the TSD took: `interval` and `group_by` may be None."""

    series: Series
    time_s: int
    value: float
    interval: str | None
    aggregator: str | None
    group_by: str | None


@dataclasses.dataclass(frozen=True)
class RollupCase:
    """One case; cells are (table, row key, qualifier, value)."""

    title: str
    sent: list[Sent]
    rejected: int
    uids: dict[Name, bytes]
    cells: list[tuple[str, bytes, bytes, bytes]]
    config: RollupConfig
    layout: OpenTsdb


def rollup_cases() -> list[RollupCase]:
    """All cases of all files."""
    found = []
    for group in GROUPS:
        content = json.loads((HERE / f"{group}.json").read_text())
        found += [_case(group, case, content["config"]) for case in content["cases"]]
    return found


def _case(group: str, case: dict[str, Any], config: dict[str, Any]) -> RollupCase:
    ours = {"tagRaw": config.get("tsd.rollups.tag_raw") == "true"}
    document = {**config["tsd.rollups.config"], "timebeam": ours}
    sent, rejected = [], 0
    for step in case["steps"]:
        _, path, body = step["http"]
        rejected += step["answer"]["failed"]
        if path.startswith("/api/rollup") and not step["answer"]["failed"]:
            sent += [
                Sent(
                    Series.of(point["metric"], point["tags"]),
                    point["timestamp"],
                    point["value"],
                    *(point.get(name) for name in ("interval", "aggregator", "groupByAggregator")),
                )
                for point in body
            ]
    salt = int(config.get("tsd.storage.salt.width", 0))
    return RollupCase(
        f"{group}/{case['name']}",
        sent,
        rejected,
        {
            Name(kind, name): bytes.fromhex(uid)
            for kind, names in case["uids"].items()
            for name, uid in names.items()
        },
        [(table, *map(bytes.fromhex, (key, name, value))) for table, key, _, name, value in case["cells"]],
        parse_config(json.dumps(document)),
        OpenTsdb(OpenTsdbOptions(salt_width=salt)),
    )
