"""No process of timebeam imports modules from the folder in which the command is run."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stored import Store

_ROOT = Path(__file__).parents[2]
_STARTS = {
    "pipelines/beam_patches/fork_server.py": ["-P", "-c"],
    "pipelines/local/emulator.py": ["-IS", "-c"],
    "pipelines/local/emulator.py, pip": ["-P", "-m"],
    "pipelines/local/trial.py": ["-P", "-m"],
}
"""Where Python is started, and its first two arguments; `serve` and Beam pass our environment on."""


def _starts() -> Iterator[tuple[str, list[str]]]:
    """(module, the words after `sys.executable`) of each list in the product that begins with it."""
    for folder in ("pipelines", "transforms", "schema"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                    words = [each.value for each in node.elts if isinstance(each, ast.Constant)]
                    yield str(path.relative_to(_ROOT)), words


def test_every_start_of_python_leaves_the_current_folder_out() -> None:
    starts = sorted((path, words[:2]) for path, words in _starts())
    assert starts == sorted((path.partition(",")[0], words) for path, words in _STARTS.items())


@pytest.mark.parametrize("more", [(), ("--direct_running_mode=multi_processing", "--direct_num_workers=2")])
def test_modules_of_the_current_folder_are_not_run(
    more: tuple[str, ...], bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = Store.create(bigtable, prefix)
    point = {"metric": "m", "timestamp": 1356998400, "value": 1, "tags": {"h": "a"}}
    tmp_path.joinpath("a.json").write_text(json.dumps(point) + "\n")
    for module in ("json", "random", "numpy", "apache_beam", "threading"):
        tmp_path.joinpath(f"{module}.py").write_text(
            f"open('run', 'a').write('{module} ')\nraise SystemExit\n"
        )
    ingest = ("ingest", *store.flags, "--format=opentsdb-json", "--input=a.json", "--auto-create-metrics")
    command = [str(Path(sys.executable).with_name("timebeam")), *ingest, *more]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert not tmp_path.joinpath("run").exists()
    assert len(store.rows()) == 1
