"""Names of modules: each says which thing it holds, and no two modules have the same one."""

from __future__ import annotations

import collections
from pathlib import Path

_ROOT = Path(__file__).parents[2]

FAMILIES = {
    "archived": "what of a row goes into the archive, in each layout that is read by series",
    "decode": "rows to points or records, in each layout",
    "encode": "points to fragments of rows, in each layout",
    "json_format": "a message format in JSON, of each system that has one",
    "keys": "row keys, in each layout and the archive",
    "layout": "the class of each layout",
    "options": "the options of each layout, and of the formats: data without numpy, for help and completion",
    "select": "the rows of a query, in each layout",
}
"""Names that several modules have, one in each room of a kind."""


def test_no_two_modules_of_schema_and_transforms_share_a_name() -> None:
    places = collections.defaultdict[str, list[str]](list)
    for layer in ("schema", "transforms"):
        for path in sorted((_ROOT / layer).rglob("*.py")):
            if path.name != "__init__.py":
                places[path.stem].append(str(path.parent.relative_to(_ROOT)))
    shared = {name for name, folders in places.items() if len(folders) > 1}
    assert shared == FAMILIES.keys()
