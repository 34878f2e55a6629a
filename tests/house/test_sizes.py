"""No folder and no module is larger than what a reader takes in at a glance."""

from __future__ import annotations

from pathlib import Path

from tests.house.figures import modules

_ROOT = Path(__file__).parents[2]

MOST_ENTRIES, MOST_LINES = 15, 400


def test_no_folder_of_schema_and_transforms_has_more_than_fifteen_entries() -> None:
    folders = [
        path for name in ("schema", "transforms") for path in (_ROOT / name).rglob("*") if path.is_dir()
    ]
    entries = {
        str(path.relative_to(_ROOT)): len([each for each in path.iterdir() if each.name != "__pycache__"])
        for path in folders
        if path.name != "__pycache__"
    }
    assert {name: count for name, count in entries.items() if count > MOST_ENTRIES} == {}


def test_no_module_has_more_than_400_lines() -> None:
    lines = {
        str(path.relative_to(_ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules(_ROOT)
    }
    assert [name for name, count in lines.items() if count > MOST_LINES] == []
