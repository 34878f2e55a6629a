"""The way of a file to its mutations, as the docstring of the graph tells it, is the one that it takes."""

from __future__ import annotations

import atexit
import functools
import json
import re
import sys
import threading
from pathlib import Path
from types import FrameType

from tests.conftest import Bigtable
from tests.support.any_store import AnyStore
from tests.support.points import BASE_S
from tests.support.processes.children import start_command
from timebeam.pipelines.ingest import ingest_jobs

TOLD = re.findall(r"^- `(timebeam\.[\w.]+)`", ingest_jobs.__doc__ or "", re.MULTILINE)
"""Functions, each with its module, in the order of the docstring."""


def record_calls(report: Path) -> None:
    """Has this process write, when it ends, the functions of schema/ and transforms/ by their first call."""
    calls: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(("timebeam.schema.", "timebeam.transforms.")):
            calls.setdefault((module, frame.f_code.co_qualname))

    atexit.register(lambda: report.write_text(json.dumps(list(calls))))
    threading.setprofile(note)
    sys.setprofile(note)


def calls_of_ingest(store: AnyStore, folder: Path, emulator: str) -> dict[str, str]:
    """The modules of what an ingest of ten points of two series calls, by function, by the first call."""
    lines = [
        {"metric": "sys.cpu", "timestamp": BASE_S + i, "value": i / 2, "tags": {"host": f"web{i % 2}"}}
        for i in range(10)
    ]
    file, output, report = folder / "points.json", folder / "output", folder / "calls.json"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    flags = (*store.flags, *store.auto_create, "--format=opentsdb-json", "--input", file)
    process = start_command(
        ["ingest", *flags, "--dead-letters", folder / "letters"],
        output,
        {"BIGTABLE_EMULATOR_HOST": emulator},
        functools.partial(record_calls, report),
    )
    process.join()
    assert process.exitcode == 0, (output / "err").read_text()
    return {f"{module}.{function}": module for module, function in json.loads(report.read_text())}


def test_the_docstring_of_the_graph_tells_the_way_of_a_file(
    bigtable: Bigtable, prefix: str, tmp_path: Path, emulator: str
) -> None:
    calls = calls_of_ingest(AnyStore.create(bigtable, prefix, "opentsdb"), tmp_path, emulator)
    order = list(calls)
    assert [name for name in TOLD if name not in calls] == [], "told, but never called"
    assert sorted(TOLD, key=order.index) == TOLD, "called in another order than told"
    steps = {module for name, module in calls.items() if name.endswith("Fn.process")}
    assert steps - {calls[name] for name in TOLD} == set(), "modules of steps that are not told"
    assert sum(name.endswith("Fn.process") for name in calls) >= 5
