"""Examples of the documents run as they are printed: the quick start, the first steps, and Python code."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.conftest import Bigtable
from tests.support.commands import timebeam

ROOT = Path(__file__).resolve().parent.parent
QUICK_START = (ROOT / "README.md").read_text("utf-8").split("## Quick start")[1].split("\n## ")[0]
FIRST_STEPS = (ROOT / "docs" / "tutorial" / "first-steps.md").read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, which is empty for blocks that show output."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in fences if name == language]


def shell_lines(text: str) -> list[str]:
    """The lines of shell blocks, without comments and without those that only start the emulator."""
    lines = [line.split("   #")[0].strip() for block in blocks(text, "sh") for line in block.splitlines()]
    starts = ("make ", "timebeam emulator", "export BIGTABLE_EMULATOR_HOST")
    return [line for line in lines if line and not line.startswith(starts)]


def run_shell(lines: list[str], folder: Path, options: list[str]) -> str:
    """Runs `timebeam` and `echo … > FILE` lines; returns what the commands printed.

    Args:
      folder: of files that the lines write.
      options: given to every command, so that tests do not meet in one table.
    """
    printed = []
    for line in lines:
        words = shlex.split(line)
        if words[0] == "echo":
            assert words[-2] == ">"
            (folder / words[-1]).write_text(" ".join(words[1:-2]) + "\n")
            continue
        assert words[0] == "timebeam", line
        ran = timebeam(*words[1:], *options)
        assert ran.code == 0, (line, ran.err)
        printed.append(ran.out)
    return "".join(printed)


@pytest.mark.parametrize("text", [QUICK_START, FIRST_STEPS], ids=["quick start", "first steps"])
def test_shell_examples_run_and_print_what_is_shown(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bigtable: Bigtable, prefix: str
) -> None:
    shutil.copytree(ROOT / "examples" / "metrics", tmp_path / "examples" / "metrics")
    monkeypatch.chdir(tmp_path)
    options = ["--project", bigtable.project, "--instance", bigtable.instance, "--table_prefix", prefix]
    printed = run_shell(shell_lines(text), tmp_path, options).replace(prefix, "")
    shown = [line for block in blocks(text, "") for line in block.splitlines()]
    assert len(shown) >= 3
    assert not [line for line in shown if line not in printed], printed


def test_python_examples_of_the_api_run() -> None:
    """Examples that need tables of their own are tested beside the code that they show."""
    path = ROOT / "docs" / "reference" / "api.md"
    code = blocks(path.read_text("utf-8"), "python")
    assert len(code) >= 3
    exec(compile("\n".join(code), str(path), "exec"), {"__name__": "example"})
