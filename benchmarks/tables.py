"""Writes the tables of benchmarks/RESULTS.md, the costs of `timebeam plan`, and what it prints.

    python -m benchmarks.tables                       # from benchmarks/figures.json, which is committed
    cp build/bench.json benchmarks/figures.json       # to have new ones

A table stands between the lines `<!-- NAME -->` and `<!-- end -->`; `NAME` is a benchmark, or `machine`.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.bench import ROOT, table
from benchmarks.layouts import CASES

FIGURES = ROOT / "benchmarks" / "figures.json"
COSTS = ROOT / "pipelines" / "sizing" / "costs.json"
SIZING = ROOT / "docs" / "operate" / "sizing.md"
_COMMAND = re.compile(r"^```\n\$ (timebeam plan .*)\n(?:.*\n)*?```$", re.MULTILINE)
PAGE = ROOT / "benchmarks" / "RESULTS.md"
_TABLE = re.compile(r"(?<=^<!-- )((?!end )\w+)( -->\n).*?(?=^<!-- end -->)", re.MULTILINE | re.DOTALL)


def with_tables(page: str, report: dict[str, Any]) -> str:
    """The page with the tables of a report."""

    def of_benchmark(match: re.Match[str]) -> str:
        name = match[1]
        if name == "machine":
            return f"{name}{match[2]}{_machine(report)}\n"
        if name not in report["benchmarks"]:
            return f"{name}{match[2]}This run did not include `python -m benchmarks.{name}`.\n"
        benchmark = report["benchmarks"][name]
        options = " ".join(
            f"--{option} {' '.join(map(str, value)) if isinstance(value, list) else value}"
            for option, value in benchmark["options"].items()
            if value not in ("", [])
        )
        command = f"`python -m benchmarks.{name} {options}`".replace(" `", "`")
        return f"{name}{match[2]}{command}\n\n{table(benchmark['cases'])}\n"

    return _TABLE.sub(of_benchmark, page)


def _machine(report: dict[str, Any]) -> str:
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{report['date']}, commit {report['commit']}: {machine['cores']} cores of {machine['cpu']}, "
        f"load {machine['load']} at the start.\nPython {machine['python']}, {packages}."
    )


def costs(report: dict[str, Any]) -> dict[str, Any]:
    """The document of `timebeam.pipelines.sizing.estimate`: processor seconds for a million points."""

    def median(benchmark: str, case: str, figure: str = "CPU s/M points") -> float:
        return round(statistics.median(report["benchmarks"][benchmark]["cases"][case][figure]), 2)

    formats = {
        case.form: case.name for case in CASES if case.packing.value == "compacted" and not case.options
    }
    files: dict[str, float] = {}
    for case in CASES:
        files.setdefault(f"{case.layout} {case.packing.value}", median("layouts", case.name))
    messages = {
        packing: {
            case.split()[0].replace(",", ""): median("streaming", case, f"CPU s/M points, `{packing}`")
            for case in report["benchmarks"]["streaming"]["cases"]
        }
        for packing in ("points", "compacted")
    }
    return {
        "date": report["date"],
        "cpu": report["machine"]["cpu"],
        "files": files,
        "formats": {form: median("layouts", name) for form, name in formats.items()},
        "messages": messages,
    }


def with_outputs(page: str) -> str:
    """The page with what each of its `timebeam plan` commands prints."""

    def with_output(match: re.Match[str]) -> str:
        command = [sys.executable, "-m", *shlex.split(match[1])]
        printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return f"```\n$ {match[1]}\n{printed.rstrip()}\n```"

    return _COMMAND.sub(with_output, page)


if __name__ == "__main__":
    figures = json.loads(FIGURES.read_text("utf-8"))
    COSTS.write_text(json.dumps(costs(figures), indent=1) + "\n", "utf-8")
    PAGE.write_text(with_tables(PAGE.read_text("utf-8"), figures), "utf-8")
    SIZING.write_text(with_outputs(SIZING.read_text("utf-8")), "utf-8")
