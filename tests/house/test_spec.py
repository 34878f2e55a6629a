"""Every reference to the specification names a document of docs/spec and a section that it has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "docs" / "spec"
_NUMBER = r"§(\d+(?:\.\d+)*)"
_REFERENCE = re.compile(rf"docs/spec/([-a-z]+\.md)((?:[\s,;]*(?:and|to)?\s*{_NUMBER})*)")


def sections(path: Path) -> set[str]:
    """The numbers of a document's headings, and of the items of its numbered lists as SECTION.ITEM."""
    numbers, section = set(), ""
    for line in path.read_text("utf-8").splitlines():
        heading = re.match(r"#+ (\d+(?:\.\d+)*)\.? ", line)
        item = re.match(r"(\d+)\. ", line)
        if heading:
            section = heading[1]
            numbers.add(section)
        elif item and section:
            numbers.add(f"{section}.{item[1]}")
    return numbers


def references(text: str) -> list[tuple[str, str]]:
    """(document, section) of each reference; the section is empty if only the document is named."""
    found = []
    for match in _REFERENCE.finditer(text):
        numbers = re.findall(_NUMBER, match[2])
        found += [(match[1], number) for number in numbers] or [(match[1], "")]
    return found


def test_every_reference_leads_to_a_section() -> None:
    known = {path.name: sections(path) | {""} for path in SPEC.glob("*.md")}
    folders = ("schema", "transforms", "pipelines", "tests", "examples", "benchmarks", "templates")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    count, dead = 0, []
    for path in paths:
        if path == Path(__file__) or path.suffix not in (".py", ".toml", ".md"):
            continue
        for document, section in references(path.read_text("utf-8")):
            count += 1
            if section not in known.get(document, set()):
                dead.append(f"{path.relative_to(ROOT)}: docs/spec/{document} §{section}")
    assert not dead, "\n".join(dead)
    assert count > 85


def test_no_text_cites_notes_that_are_not_there() -> None:
    cited = re.compile(r"\bformat notes\b|\bsections? \d")
    for folder in ("schema", "transforms", "pipelines"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not cited.search(path.read_text("utf-8")), path


def test_a_dead_reference_is_found() -> None:
    assert references("see docs/spec/opentsdb.md §1.1, §2 and §9.99; or docs/spec/heroic.md") == [
        ("opentsdb.md", "1.1"),
        ("opentsdb.md", "2"),
        ("opentsdb.md", "9.99"),
        ("heroic.md", ""),
    ]
    assert "9.99" not in sections(SPEC / "opentsdb.md")


def test_the_specification_names_files_that_exist() -> None:
    for path in SPEC.glob("*.md"):
        for cited in re.findall(r"(?<![\w/])(?:tests|docs)/[\w/-]+\.\w+", path.read_text("utf-8")):
            assert (ROOT / cited).exists(), (path.name, cited)
