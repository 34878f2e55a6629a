"""The requests to a real TSD 2.4.1 and its answers (tests/golden/opentsdb/api.json); what is equal."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

from tests.golden.cases import HERE
from tests.support.commands import ingest
from tests.support.points import FIRST_MS
from tests.support.stored import Store
from timebeam.pipelines.serve.route_requests import request_of
from timebeam.schema.stores.opentsdb.http.api_request import Request

FILE: dict[str, Any] = json.loads((HERE / "api.json").read_text("utf-8"))
SALTED: dict[str, Any] = json.loads((HERE / "api_salt.json").read_text("utf-8"))
"""Salted tables, with rollups of some points."""

_UNCOUNTED = {"time", "created", "trace", "details"}
"""Members that differ from run to run, or say of an error what is the server's own."""

_TOLERANCE = 1e-12


@dataclasses.dataclass(frozen=True)
class Case:
    """A request, and what a TSD answered."""

    name: str
    method: str
    path: str
    body: Any
    status: int
    answer: Any

    def request(self) -> Request:
        """The request, as it came over the wire."""
        body = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return request_of(self.method, self.path, b"" if self.body is None else body.encode())


def cases_of(content: dict[str, Any]) -> list[Case]:
    """The requests of a file, and what a TSD answered."""
    return [
        Case(case["name"], case["method"], case["path"], case.get("body"), case["status"], case["answer"])
        for case in content["cases"]
    ]


CASES = cases_of(FILE)


def load(store: Store, folder: Path, content: dict[str, Any] = FILE) -> None:
    """Writes the UIDs of a file and the TSD's cells of annotations and rollups, then ingests its points."""
    for kind, uids in content["data"]["uids"].items():
        for name, uid in uids.items():
            store.set_uid(kind, "id", name.encode(), bytes.fromhex(uid))
            store.set_uid(kind, "name", bytes.fromhex(uid), name.encode())
        store.set_counter(kind, len(uids))
    prefix = store.layout.options.table_prefix
    for table, key, family, *cell in content["data"]["cells"]:
        store.set_cell(prefix + table, bytes.fromhex(key), family, *map(bytes.fromhex, cell))
    points = folder / "points.txt"
    points.write_text("".join(line + "\n" for line in content["data"]["telnet"]))
    os.utime(points, (FIRST_MS / 1000, FIRST_MS / 1000))
    ingested = ingest(folder, *store.flags, "--format=opentsdb-text", "--input", points)
    assert ingested.letters == []


def normal(answer: Any) -> Any:
    """An answer without `_UNCOUNTED` members and without the order of results and of tag keys."""
    if isinstance(answer, dict):
        members = {key: normal(value) for key, value in answer.items() if key not in _UNCOUNTED}
        if isinstance(members.get("aggregateTags"), list):
            members["aggregateTags"] = sorted(members["aggregateTags"])
        return members
    if isinstance(answer, list):
        members = [normal(member) for member in answer]
        if all(isinstance(member, dict) for member in members):
            return sorted(members, key=_identity)
        return members
    return answer


def _identity(member: dict[str, Any]) -> str:
    """What tells results apart, whatever their values are."""
    return json.dumps({key: value for key, value in member.items() if key != "dps"}, sort_keys=True)


def differences(answer: Any, expected: Any, where: str = "", *, absolute: float = 0.0) -> list[str]:
    """The places in which two answers differ; numbers are equal within 1e-12 relative, or `absolute`."""
    if isinstance(expected, bool) or isinstance(answer, bool):
        return [] if answer is expected else [f"{where}: {answer!r}, expected {expected!r}"]
    if isinstance(expected, (int, float)) and isinstance(answer, (int, float)):
        equal = math.isclose(answer, expected, rel_tol=_TOLERANCE, abs_tol=absolute)
        return [] if equal else [f"{where}: {answer!r}, expected {expected!r}"]
    if isinstance(expected, dict) and isinstance(answer, dict):
        if answer.keys() != expected.keys():
            only = sorted(answer.keys() - expected.keys()), sorted(expected.keys() - answer.keys())
            return [f"{where}: keys {only[0]} too many, {only[1]} missing"]
        return [
            text
            for key in expected
            for text in differences(answer[key], expected[key], f"{where}.{key}", absolute=absolute)
        ]
    if isinstance(expected, list) and isinstance(answer, list):
        if len(answer) != len(expected):
            return [f"{where}: {len(answer)} members, expected {len(expected)}"]
        return [
            text
            for number, pair in enumerate(zip(answer, expected, strict=True))
            for text in differences(*pair, f"{where}[{number}]", absolute=absolute)
        ]
    return [] if answer == expected else [f"{where}: {answer!r}, expected {expected!r}"]
