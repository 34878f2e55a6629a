"""The documents agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

from pipelines import ingest, query
from pipelines.cli import COMMANDS
from pipelines.parameters import Parameter
from schema.layouts import LAYOUTS
from schema.messages import FORMATS
from schema.points import Reason
from transforms import metrics

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def option_row(parameter: Parameter) -> str:
    """The line of the README's table for one option."""
    default = "" if parameter.default in (None, [], "") else f"`{parameter.default}`"
    if isinstance(parameter.default, bool):
        default = default.lower()
    if parameter.required:
        default = "required"
    choices = (
        " (" + ", ".join(f"`{choice}`" for choice in parameter.choices) + ")" if parameter.choices else ""
    )
    text = parameter.help.replace("|", "\\|")
    return f"| `--{parameter.name}`{choices} | {default} | {text} |"


def test_every_option_of_ingest_and_query_stands_in_the_readme():
    rows = [option_row(parameter) for parameter in (*ingest.PARAMETERS, *query.PARAMETERS)]
    missing = [row for row in rows if row not in README]
    assert not missing, "\n" + "\n".join(missing)


def test_every_command_format_and_layout_stands_in_the_readme():
    for name in (*(f"timebeam {command}" for command in COMMANDS), *FORMATS, *LAYOUTS):
        assert f"`{name}" in README, name


def test_the_table_of_reasons_is_that_of_the_code():
    text = (ROOT / "docs" / "dead-letters.md").read_text()
    documented = re.findall(r"^\| `([a-z-]+)` \|", text.split("| reason | when |")[1], re.MULTILINE)
    assert documented == [reason.value for reason in Reason]


def test_the_table_of_metrics_is_that_of_the_code():
    counted, observed = set(), set()
    for path in (ROOT / "transforms").rglob("*.py"):
        counted |= set(re.findall(r'metrics\.count\("([a-z_]+)"', path.read_text()))
        observed |= set(re.findall(r'metrics\.observe\("([a-z_]+)"', path.read_text()))
    assert counted | set(metrics.KIND_OF.values()) == set(metrics.COUNTERS)
    assert observed == set(metrics.DISTRIBUTIONS)
    text = (ROOT / "docs" / "metrics.md").read_text()
    documented = re.findall(r"^\| `([a-z_]+)", text, re.MULTILINE)
    assert documented == [*metrics.COUNTERS, *metrics.DISTRIBUTIONS]
    assert len(documented) <= 20


def test_the_kind_of_every_reason_is_documented():
    text = (ROOT / "docs" / "metrics.md").read_text()
    for reason, kind in metrics.KIND_OF.items():
        (row,) = re.findall(rf"^\| `{kind}` .*", text, re.MULTILINE)
        assert f"`{reason.value}`" in row, (reason, kind)


def test_links_between_documents_lead_somewhere():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            assert "://" in target or (path.parent / target).exists(), f"{path.name}: {target}"


def test_no_machine_path_and_no_registry_in_what_is_committed():
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "requirements-test.lock"):
        assert not re.search(r"/(root|home|work|tmp)/|--index-url|file:", path.read_text()), path.name
