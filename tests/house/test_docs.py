"""The documents agree with the code."""

from __future__ import annotations

import itertools
import re
import runpy
import shlex
from pathlib import Path

import pytest

from tests.house import pages
from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.deploy import options_page
from timebeam.pipelines.options.parameters import DECLARED
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.formats import FORMATS
from timebeam.schema.stores import STORES
from timebeam.transforms.flow import metrics

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "templates").rglob("*.md")]


def test_the_page_of_options_is_up_to_date():
    assert options_page.main(["check"]) == 0


def test_every_command_and_layout_stands_in_the_readme_and_every_format_on_its_page():
    for name in (*(f"timebeam {command}" for command in COMMANDS), *STORES):
        assert f"`{name}" in README, name
    page = (ROOT / "docs" / "reference" / "formats.md").read_text()
    for name in FORMATS:
        assert f"`{name}" in page, name


def test_the_table_of_reasons_is_that_of_the_code():
    text = (ROOT / "docs" / "reference" / "reasons.md").read_text()
    text = text.split("| reason | when |")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)
    assert documented == [reason.value for reason in Reason]


def test_the_table_of_metrics_is_that_of_the_code():
    counted, observed = set(), set()
    for path in (ROOT / "transforms").rglob("*.py"):
        counted |= set(re.findall(r'metrics\.count\("([a-z_]+)"', path.read_text()))
        observed |= set(re.findall(r'metrics\.observe\("([a-z_]+)"', path.read_text()))
    assert counted | set(metrics.KIND_OF.values()) == set(metrics.COUNTERS)
    assert observed == set(metrics.DISTRIBUTIONS)
    text = (ROOT / "docs" / "reference" / "reasons.md").read_text()
    text = text.split("| counter |")[1].split("\n| namespace |")[0]
    documented = re.findall(r"^\| `([a-z_]+)", text, re.MULTILINE)
    assert documented == [*metrics.COUNTERS, *metrics.DISTRIBUTIONS]
    assert len(documented) <= 21


def test_the_kind_of_every_reason_is_documented():
    text = (ROOT / "docs" / "reference" / "reasons.md").read_text()
    for reason, kind in metrics.KIND_OF.items():
        (row,) = re.findall(rf"^\| `{kind}` .*", text, re.MULTILINE)
        assert f"`{reason.value}`" in row, (reason, kind)


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^-\w ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere():
    dead = []
    for path in DOCUMENTS:
        prose = re.sub(
            r"^```.*?^```|`[^`\n]*`", "``", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        for target in re.findall(r"\]\(([^)]+)\)", prose):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            page = path.parent / name if name else path
            if not page.exists() or (anchor and anchor not in anchors(page)):
                dead.append(f"{path.relative_to(ROOT)}: {target}")
    assert not dead, "\n".join(dead)


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        name = str(path.relative_to(ROOT / "docs"))
        assert name == "index.md" or f"({name})" in index, name


def test_every_folder_of_documents_is_in_the_navigation_of_the_site():
    configuration = (ROOT / "docs" / "conf.py").read_text("utf-8")
    folders = {path.parent.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert not [folder for folder in folders if folder.name and f'"{folder}"' not in configuration]


def test_no_heading_skips_a_level():
    for path in (ROOT / "docs").rglob("*.md"):
        prose = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        levels = [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)]
        assert all(deeper <= level + 1 for level, deeper in itertools.pairwise(levels)), path.name


def test_there_are_few_pages_and_few_words():
    counted = pages.words(ROOT)
    assert len(counted) <= pages.MOST_PAGES
    assert sum(counted.values()) <= pages.MOST_WORDS


def test_no_folder_of_documents_is_crowded():
    for folder in (ROOT / "docs").iterdir():
        assert folder.is_file() or len(list(folder.iterdir())) <= 15, folder


def test_links_of_the_readme_become_absolute_for_a_package_index(monkeypatch: pytest.MonkeyPatch):
    setup = runpy.run_path(str(ROOT / "setup.py"))
    for url in ("", "https://example.org/timebeam"):
        monkeypatch.setenv("PROJECT_URL", url)
        text = setup["long_description"]()
        assert ("](docs/index.md)" in text) == (not url)
        assert f"]({url}/blob/main/docs/index.md)" in text or not url
        assert all(page.startswith(url) and url for page in setup["project_urls"]().values())


def test_paths_of_documents_that_the_code_cites_exist():
    dead, count = [], 0
    for folder in (
        "schema",
        "transforms",
        "pipelines",
        "timebeam",
        "tests",
        "examples",
        "benchmarks",
        "templates",
    ):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix not in (".py", ".toml", ".md", ".json", ".tf", ".yaml") or path == Path(__file__):
                continue
            for cited in re.findall(r"\bdocs/[-a-z/]+\.md\b", path.read_text("utf-8", "replace")):
                count += 1
                if not (ROOT / cited).exists():
                    dead.append(f"{path.relative_to(ROOT)}: {cited}")
    assert not dead, "\n".join(dead)
    assert count > 100


def command_lines(text: str) -> list[list[str]]:
    """The arguments of each `timebeam` command in a document, in blocks and in sentences."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.split("   #")[0] for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(
        r"`(timebeam [^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    )
    return [shlex.split(line)[1:] for line in lines if line.removeprefix("$ ").startswith("timebeam ")]


def test_command_lines_that_read_have_a_metric() -> None:
    parser = find_command("query").parser()
    seen = 0
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for arguments in command_lines(path.read_text()):
            if "query" not in arguments[:2] or "--start" not in arguments:
                continue
            options = parser.parse_args(arguments[arguments.index("query") + 1 :])
            is_table = options.layout == DECLARED
            assert is_table or options.metric.count("."), (path.name, arguments)
            seen += 1
    assert seen > 5


def test_modules_that_contributing_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Where to start reading\n")[1].split("\n## ")[0]
    paths = re.findall(r"`([a-z_/0-9]+\.py)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_the_tree_of_contributing_has_the_rooms_that_there_are():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for layer in ("schema", "transforms", "pipelines"):
        section = re.search(rf"^{layer}/.*\n((?:  .*\n)+)", text, re.MULTILINE)
        assert section is not None
        named = {
            room
            for line in re.findall(r"^  (\S.*)$", section[1], re.MULTILINE)
            for room in re.findall(r"(\w+)/(?=,|\s|$)", line.split("    ")[0])
        }
        there = {path.name for path in (ROOT / layer).iterdir() if path.is_dir() and path.name[0] != "_"}
        assert named == there, layer


def test_files_that_the_documents_of_tables_name_are_there():
    text = (ROOT / "docs" / "reference" / "tables.md").read_text()
    named = re.findall(r"--(?:tables|input) (\S+)", text) + re.findall(r"layout (?:check|heat) (\S+)", text)
    assert len(named) > 8
    assert not [name for name in named if not (ROOT / name).exists()]


def test_no_machine_path_and_no_registry_in_what_is_committed():
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "requirements-test.lock"):
        assert not re.search(r"/(root|home|work|tmp)/|--index-url|file:", path.read_text()), path.name
