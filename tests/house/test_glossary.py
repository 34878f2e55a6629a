"""Names in schema/ and transforms/ use the words of the glossary, one for one thing."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

from tests.house.figures import modules

_ROOT = Path(__file__).parents[2]
_PLACES = ("docs/concepts/data-model.md", "CONTRIBUTING.md")
_GLOSSARY = "\n\n".join((_ROOT / place).read_text(encoding="utf-8") for place in _PLACES)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def _rows(header: str) -> list[list[str]]:
    """The cells of the rows of the table with a header."""
    table = _GLOSSARY.split(f"{header}\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def _names() -> set[str]:
    """The names of modules, and all names in them."""
    paths = [path for path in modules(_ROOT) if path.relative_to(_ROOT).parts[0] != "pipelines"]
    names = {path.stem for path in paths}
    for path in paths:
        with path.open("rb") as file:
            tokens = tokenize.tokenize(file.readline)
            names.update(each.string for each in tokens if each.type == tokenize.NAME)
    return names


def test_names_use_one_word_for_one_thing() -> None:
    unused = {word for _, words, _ in _rows("| word | not used | for |") for word in words.split(", ")}
    kept = {name for names, _ in _rows("| name | why |") for name in re.findall(r"`(\w+)`", names)}
    names = {name for name in _names() if unused & {word.lower() for word in _WORDS.findall(name)}}
    assert names == kept


def test_the_glossary_has_each_term_once() -> None:
    terms = [term for term, _ in _rows("| term | meaning |")]
    assert len(terms) == len(set(terms)) >= 30
