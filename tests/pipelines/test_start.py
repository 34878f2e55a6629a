"""What commands import before they have read their options, and those that read without a pipeline at all.

Beam takes more than a second, Google's clients half a second; numpy and pyarrow 0.15 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence, Set
from pathlib import Path

import pytest

from tests.support.stored import Store
from timebeam.pipelines.commands import COMMANDS, find_command

SLOW = (
    "apache_beam",
    "fastavro",
    "google.api_core",
    "google.protobuf",
    "grpc",
    "matplotlib",
    "numpy",
    "pandas",
    "plotly",
    "pyarrow",
    "starlette",
    "uvicorn",
)
"""What no command needs to explain itself, or to reject an option."""

READERS = ("check", "config", "query", "serve", "series", "suggest", "tables")
"""Commands that read Bigtable by themselves, without a pipeline."""

UNUSED = {"apache_beam", "matplotlib", "plotly", "pyarrow.compute"}
CLIENTS = {
    "aiohttp",
    "cryptography",
    "google.cloud.bigtable",
    "google.cloud.bigtable_admin_v2",
    "google.cloud.bigtable_v2",
    "requests",
}
"""Google's clients, and what only they import; reads without an emulator need that of the data API."""

FORMATS = {"fastavro", "pyarrow", "timebeam.schema.formats.base", "timebeam.schema.formats.options"}
FORMATS |= {"timebeam.schema.stores.declared.declaration"}
"""Formats of messages but for their names, declared tables, and what only they import."""

_PROGRAM = f"""\
import contextlib, io, json, sys
from timebeam.pipelines import cli

loaded = {{}}
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = cli.main(line)
        except SystemExit as stop:
            code = stop.code
    loaded[" ".join(line)] = [code or 0, sorted(sys.modules.keys() & set({SLOW!r}))]
print(json.dumps(loaded))
"""

_IMPORTS = """\
import importlib, json, sys
import timebeam.pipelines.options.use_settings

print(json.dumps({
    function: importlib.import_module(function.partition(":")[0]) and list(sys.modules)
    for function in json.loads(sys.argv[1])
}))
"""


_FAULTS = """\
import resource, sys
from timebeam.pipelines import cli
import numpy as np

if sys.argv[1:]:
    cli._keep_heap()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    columns = [np.ones(1 << 17) for _ in range(10)]
    del columns
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def started(*lines: list[str]) -> dict[str, tuple[int, list[str]]]:
    """By command line, its exit code and which of `SLOW` is imported then, in one process."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps(lines)], capture_output=True, text=True, check=True
    )
    return {line: (code, modules) for line, (code, modules) in json.loads(ran.stdout).items()}


def test_help_imports_no_slow_module() -> None:
    lines = [["--help"], ["--version"], ["help", "format"], ["help", "format", "influx"], ["help", "query"]]
    lines += [[command, option] for command in COMMANDS for option in ("--help", "--help-all")]
    loaded = started(*lines)
    assert len(loaded) == len(lines)
    assert loaded == dict.fromkeys(loaded, (0, []))


def test_wrong_usage_imports_no_slow_module() -> None:
    wrong = [["no-command"], *([command, "--no_such_option=1"] for command in COMMANDS)]
    wrong += [
        ["ingest", "--format", "none"],
        ["copy", "--from", "opentsdb"],
        ["rollup", "--set=salt_width=x"],
    ]
    limits = ("--max-series=x", "--max-new-series=app.*=", "--max-tag-values=1000000000")
    wrong += [["ingest", "--format=influx", limit] for limit in limits]
    wrong += [["query", "--salt-width=1"], ["ingest", "--regoin=x"]]
    loaded = started(*wrong)
    assert loaded == dict.fromkeys(loaded, (2, []))


def test_completion_imports_no_slow_module() -> None:
    assert started(["completion", "bash"]) == {"completion bash": (0, [])}


@pytest.mark.parametrize(
    ("commands", "unused"),
    [
        (("tables",), UNUSED),
        (("serve",), UNUSED | {"aiohttp", "google.cloud.bigtable"}),
        (tuple(sorted(set(READERS) - {"tables", "serve"})), UNUSED | CLIENTS),
    ],
    ids=["tables", "serve", "others"],
)
def test_readers_run_without_beam_and_googles_clients(commands: Sequence[str], unused: Set[str]) -> None:
    """In one process; `tables` has the admin client, which creates them, and `serve` that of Pub/Sub."""
    imported: dict[str, list[str]] = json.loads(
        subprocess.run(
            [sys.executable, "-c", _IMPORTS, json.dumps([find_command(name).runs for name in commands])],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert len(imported) == len(commands)
    assert [name for name, names in imported.items() if unused.intersection(names)] == []


def test_an_ingest_and_a_query_import_only_what_they_need(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.write_text("put sys.cpu 1356998400 42 host=web01\n")
    store = Store.create(bigtable, prefix)

    def modules(*words: str) -> set[str]:
        program = (
            "import sys; from timebeam.pipelines import cli; print(cli.main(sys.argv[1:]), *sys.modules)"
        )
        command = [sys.executable, "-c", program, *words, *store.flags]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        code, *names = ran.stdout.splitlines()[-1].split()
        assert code == "0"
        return set(names)

    flags = ["--format=opentsdb-text", f"--input={points}", "--auto-create-metrics"]
    unused = {"google.cloud.bigtable", "aiohttp", "pandas", "pymongo"}
    assert modules("ingest", *flags).intersection(unused) == set()
    queried = modules("query", "sys.cpu", "--start=1356998400", "--downsample=1m-sum")
    assert queried.intersection(UNUSED | CLIENTS | FORMATS) == set()
    assert len(queried) < 650


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_memory_of_one_batch_serves_the_next() -> None:
    """Ten columns of 1 MiB are 2,560 pages, which the kernel clears once."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    given_back, kept = (
        int(subprocess.check_output([sys.executable, "-c", _FAULTS, *arguments], env=environment))
        for arguments in ([], ["keep"])
    )
    assert kept < 5_000 < given_back
