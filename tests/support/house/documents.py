"""Examples of the documents: their fenced blocks, and the commands in these, run in this process."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.support.commands import timebeam


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
