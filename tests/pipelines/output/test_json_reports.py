"""Every command that reports something also reports it as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.trees.forest import Forest
from tests.support.commands import timebeam
from timebeam.pipelines.commands import COMMANDS, find_command

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/tables"
WITHOUT_REPORT = {"init", "emulator", "serve", "completion"}
"""They write a file or a script, or run until they are stopped."""


def report(*arguments: str | Path) -> Any:
    """What a command that must succeed prints, as JSON."""
    ran = timebeam(*arguments)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - WITHOUT_REPORT))
def test_every_report_can_be_json(command: str) -> None:
    forms = [
        parameter for parameter in find_command(command).parameters if parameter.name in ("output", "summary")
    ]
    assert any("json" in form.choices or "json" in form.help for form in forms), command


def test_generate(tmp_path: Path) -> None:
    flags = ("--points=50", "--series=5", "--duplicates=0.1", "--summary=json", "--output", tmp_path / "p")
    figures = report("generate", *flags, "--expect", tmp_path / "e.csv")
    assert figures.pop("seconds") > 0
    lines = (tmp_path / "p").read_text().splitlines()
    assert figures == {"lines": len(lines), "points": 50, "rejected": 0}


def test_layout_check(tmp_path: Path) -> None:
    figures = report("layout", "check", EXAMPLES / "market.toml", "--summary", "json")
    tables = {table["table"]: table for table in figures["tables"]}
    assert bytes.fromhex(tables["QUOTE"]["example_key"]).startswith(b"NASDAQ#ZXZZT#")
    assert {"SYMBOL", "BID"} < set(tables["QUOTE"]["fields"])
    assert all(read["ranges"] >= 1 for table in tables.values() for read in table["reads"])
    assert figures["warnings"] == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_layout_check_of_every_example(path: Path) -> None:
    assert report("layout", "check", path, "--summary=json")["tables"]


def test_layout_heat(tmp_path: Path) -> None:
    sample = ("--input", EXAMPLES / "battery.jsonl", "--output", tmp_path / "heat.png", "--summary=json")
    figures = report("layout", "heat", EXAMPLES / "battery_naive.toml", *sample)
    assert "a hot spot" in figures["tables"][0]["verdict"]
    assert (figures["unreadable"], figures["written"]) == (0, True)


def test_trees_create_and_test(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    forest = Forest.create(bigtable, prefix, tmp_path)
    rules = [
        {"level": 0, "order": 0, "type": "METRIC"},
        {"level": 1, "order": 0, "type": "TAGK", "field": "host", "regex": "^([a-z]+)"},
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"name": "T", "enabled": True, "rules": rules}))
    created = forest.run("create", path, "--output=json")
    assert (created.code, created.err.splitlines()[0]) == (0, "tree 1, 'T': new")
    (tree,) = json.loads(created.out)
    assert (tree["treeId"], tree["name"], tree["enabled"]) == (1, "T", True)
    assert tree["changes"][0] == "tree 1, 'T': new"
    tried = forest.run("test", "sys.cpu", "host=web01", "--output=json")
    figures = json.loads(tried.out)
    assert (figures["series"], figures["tsuid"]) == ("sys.cpu{host=web01}", "")
    assert {"kind": "tagv", "name": "web01"} in figures["withoutUid"]
    assert figures["trees"] == [
        {"treeId": 1, "name": "T", "path": ["sys.cpu"], "leaf": "web", "notMatched": ""}
    ]
    assert forest.run("test", "sys.cpu", "host=web01", "--output=t.html").code == 2
