"""The check for empty names sees every way to bind a name."""

from __future__ import annotations

from pathlib import Path

from tests.house.empty_names import LARGEST_SHARE, all_bound_names, bound_names

MODULE = """
import one
class Held:
    kept: int = 0
    @classmethod
    def of(cls, wanted, *given, known=1, **left): ...
    def __init__(self): self._found = 1
def parts(): ...
for part in (): ...
with open("x") as whole: ...
[at for at in ()]
lambda both: both
(here := 1)
found.name = again
"""


def test_every_binding_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    empty = {name.name for name in bound_names(path) if name.is_empty}
    assert empty == {"kept", "wanted", "given", "known", "left", "_found", "parts", "part"} | {
        *("whole", "at", "both", "here"),
    }


def test_few_names_are_empty() -> None:
    names = all_bound_names()
    assert sum(name.is_empty for name in names) <= LARGEST_SHARE * len(names)
