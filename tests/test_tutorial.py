"""docs/tutorial/own-machine.md as a shell runs it, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.test_examples_in_documents import blocks

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "tutorial" / "own-machine.md").read_text("utf-8")


def test_the_tutorial_runs_as_it_stands(tmp_path: Path, emulator: str) -> None:
    """But for the minute in which points are written: three seconds are enough here.

    Args:
      emulator: builds the program that the page starts for itself.
    """
    script = "set -e\n" + "".join(blocks(PAGE, "sh")).replace("seq 60", "seq 3")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMEBEAM_")}
    del environment["BIGTABLE_EMULATOR_HOST"]
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    shown = [line for block in blocks(PAGE, "") for line in block.splitlines()]
    assert len(shown) > 5
    assert not [line for line in shown if line not in ran.stdout], ran.stdout
    assert "points stored              12\n" in ran.stdout
    for chart in ("load.html", "memory.html"):
        assert (tmp_path / "machine" / chart).stat().st_size > 1_000_000
