"""Counts the hand-written pages of docs/ and their words: python -m tests.house.pages.

Every Markdown file below docs/ is a page, the index too, except the specification (docs/spec) and generated
pages. A word is what `wc -w` counts: text between white space, also in tables and code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.house.figures import documents

GENERATED = ("reference/options.md",)
MOST_PAGES = 26
MOST_WORDS = 40_000


def words(root: Path) -> dict[str, int]:
    """The number of words of each hand-written page, by its path below docs/."""
    paths = {str(path.relative_to(root / "docs")): path for path in documents(root)}
    pages = {name: path for name, path in paths.items() if name not in GENERATED and name[:5] != "spec/"}
    return {name: len(path.read_text(encoding="utf-8").split()) for name, path in pages.items()}


if __name__ == "__main__":
    counted = words(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    for name, count in counted.items():
        print(f"{count:7,}  {name}")
    print(
        f"{sum(counted.values()):7,}  words in {len(counted)} pages (at most {MOST_WORDS:,} in {MOST_PAGES})"
    )
