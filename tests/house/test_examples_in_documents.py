"""Examples of the documents run as they are printed: the quick start, the first steps, and Python code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Bigtable
from tests.support.house.documents import blocks, run_shell, shell_lines

ROOT = Path(__file__).resolve().parents[2]
QUICK_START = (ROOT / "README.md").read_text("utf-8").split("## Quick start")[1].split("\n## ")[0]
TABLES = (ROOT / "docs" / "reference" / "tables.md").read_text("utf-8").split("\n## Read records")[0]
TABLES = TABLES.partition("## From records to answers")[2]
FIRST_STEPS = (ROOT / "docs" / "start" / "first-steps.md").read_text("utf-8")
OWN_MACHINE = (ROOT / "docs" / "start" / "own-machine.md").read_text("utf-8")


@pytest.mark.parametrize(
    "text", [QUICK_START, FIRST_STEPS, TABLES], ids=["quick start", "first steps", "tables"]
)
def test_shell_examples_run_and_print_what_is_shown(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bigtable: Bigtable, prefix: str
) -> None:
    for folder in ("metrics", "tables"):
        shutil.copytree(ROOT / "examples" / folder, tmp_path / "examples" / folder)
    monkeypatch.chdir(tmp_path)
    options = ["--project", bigtable.project, "--instance", bigtable.instance, "--table-prefix", prefix]
    printed = run_shell(shell_lines(text), tmp_path, options).replace(prefix, "")
    shown = [line for block in blocks(text, "") for line in block.splitlines()]
    assert len(shown) >= 3
    assert not [line for line in shown if line not in printed], printed


def test_the_library_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bigtable: Bigtable, prefix: str
) -> None:
    """After the quick start, whose points it asks for."""
    shutil.copytree(ROOT / "examples" / "metrics", tmp_path / "examples" / "metrics")
    monkeypatch.chdir(tmp_path)
    place = {"PROJECT": bigtable.project, "INSTANCE": bigtable.instance, "TABLE_PREFIX": prefix}
    for name, value in place.items():
        monkeypatch.setenv(f"TIMEBEAM_{name}", value)
    run_shell(shell_lines(QUICK_START), tmp_path, [])
    (code,) = blocks((ROOT / "README.md").read_text("utf-8"), "python")
    code = code.replace("localhost:8086", os.environ["BIGTABLE_EMULATOR_HOST"])
    example: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "README.md", "exec"), example)
    assert len(example["load"].to_dict()) == 3
    assert example["rejected"] == []


def check_own_machine(printed: str, folder: Path) -> None:
    """Asserts that the commands of the page printed what it shows, and drew its charts."""
    shown = [line for block in blocks(OWN_MACHINE, "") for line in block.splitlines()]
    assert len(shown) > 5
    assert not [line for line in shown if line not in printed], printed
    for chart in ("load.html", "memory.html"):
        assert (folder / chart).stat().st_size > 1_000_000


def test_the_commands_of_the_own_machine_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bigtable: Bigtable, prefix: str
) -> None:
    """The commands in this process, for two seconds of points."""
    monkeypatch.chdir(tmp_path)
    place = {"PROJECT": bigtable.project, "INSTANCE": bigtable.instance, "TABLE_PREFIX": prefix}
    for name, value in place.items():
        monkeypatch.setenv(f"TIMEBEAM_{name}", value)
    text = "".join(blocks(OWN_MACHINE, "sh"))
    loop = re.search(r"^for .*?^done > points.txt\n", text, re.MULTILINE | re.DOTALL)
    assert loop is not None
    subprocess.run(["bash", "-c", loop[0].replace("seq 60", "seq 2")], check=True)
    commands = [
        line for line in text.splitlines() if line.startswith("timebeam ") and "timebeam emulator" not in line
    ]
    printed = run_shell(commands, tmp_path, [])
    assert "points stored              8\n" in printed
    check_own_machine(printed.replace(prefix, ""), tmp_path)


@pytest.mark.long
@pytest.mark.emulator
def test_the_own_machine_tutorial_as_it_stands(tmp_path: Path) -> None:
    """In a shell, from an empty folder; but points are written for three seconds, not for sixty."""
    script = "set -e\n" + "".join(blocks(OWN_MACHINE, "sh")).replace("seq 60", "seq 3")
    names = ("TIMEBEAM_", "BIGTABLE_EMULATOR_HOST")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "points stored              12\n" in ran.stdout
    check_own_machine(ran.stdout, tmp_path / "machine")


def test_python_examples_of_the_api_run() -> None:
    """Examples that need tables of their own are tested beside the code that they show."""
    path = ROOT / "docs" / "reference" / "python.md"
    code = blocks(path.read_text("utf-8"), "python")
    assert len(code) >= 3
    exec(compile("\n".join(code), str(path), "exec"), {"__name__": "example"})
