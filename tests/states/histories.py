"""How the recorded states were made, and the steps that every later version takes with the same answers.

    python -m tests.states.histories NAME ...     records states again, with today's code

A state is recorded once, by the version whose tables it shows. Steps are written in today's options; their
answers, the tables and the files are not written again when an option or a name in the code changes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.states.store_state import Document, Step, answer, save, state_of
from timebeam.pipelines.local.emulator import HOST_VARIABLE, Emulator
from timebeam.schema.core.rows import Cell, Row
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import write_all

START_S = 1_793_491_200
"""2026-11-01T00:00:00Z."""
END_S = START_S + 6 * 3600
RANGE = ("--start", str(START_S), "--end", str(END_S - 1))
JSON = ("--format", "opentsdb-json")
LETTERS = ("--dead-letters", "{folder}/refused")

OPENTSDB = ("--layout", "opentsdb")
ROLLUPS = ("--rollup-config", "{folder}/rollups.json")
ROUND = ("--follow", "--rounds", "1", "--quiet-seconds", "0")
ARCHIVED = ("--layout", "opentsdb", "--table-prefix", "old-")
REWRITTEN = ("--layout", "opentsdb", "--table-prefix", "rewritten-")
DECLARED = ("--layout", "table", "--tables", "{folder}/metrics.toml")


def _points(hours: range, every_s: int, more: float = 0.0, metric: str = "sys.cpu") -> Iterator[str]:
    """Lines of points: two hosts, integers and decimals, every tenth in milliseconds."""
    for host in ("web01", "web02"):
        for second in range(hours.start * 3600, hours.stop * 3600, every_s):
            time = START_S + second
            value = second // every_s if host == "web01" else second / 7 + more
            stamp = time * 1000 + 250 if second // every_s % 10 == 9 else time
            yield json.dumps({"metric": metric, "timestamp": stamp, "value": value, "tags": {"host": host}})


def _files() -> Mapping[str, tuple[int, Sequence[str]]]:
    """What is ingested: by name, the arrival in seconds after START_S, and the lines."""
    broken = [
        '{"metric": "sys.cpu", "timestamp": 1793491200, "value": "x", "tags": {"host": "a"}}',
        "no json",
        "{",
    ]
    note = {
        "startTime": START_S + 60,
        "tsuid": "",
        "description": "all hosts",
        "notes": "kept",
        "custom": {"a": "b"},
    }
    second = {"startTime": START_S + 1000, "description": "a whole thousand of seconds"}
    histogram = {
        "metric": "sys.latency",
        "timestamp": START_S + 30,
        "tags": {"host": "web01"},
        "buckets": {"0,10": 3, "10,20": 4},
        "underflow": 1,
        "overflow": 2,
    }
    return {
        "first.json": (7 * 3600, [*_points(range(4), 30), *_points(range(1), 300, metric="debug.x")]),
        "second.json": (8 * 3600, [*_points(range(2, 6), 60, 0.5), *broken]),
        "late.json": (9 * 3600, [*_points(range(1, 2), 900, 1.25)]),
        "names.json": (7 * 3600, [*_points(range(1), 600, metric="sys größe")]),
        "notes.jsonl": (7 * 3600, [json.dumps(note), json.dumps(second)]),
        "histograms.json": (7 * 3600, [json.dumps(histogram)]),
        "otlp.json": (7 * 3600, [json.dumps(_otlp())]),
    }


def _otlp() -> dict[str, Any]:
    """A request with points of a known metric and of an unknown one, by turns."""
    metrics = [
        {
            "name": f"sys.{name}",
            "gauge": {
                "dataPoints": [
                    {
                        "timeUnixNano": str((START_S + 7 * minute) * 10**9),
                        "asDouble": minute + 0.5,
                        "attributes": [{"key": "host", "value": {"stringValue": "web03"}}],
                    }
                    for minute in minutes
                ]
            },
        }
        for name, minutes in (
            ("cpu", range(3)),
            ("new", range(3, 5)),
            ("cpu", range(5, 8)),
            ("new", range(8, 9)),
        )
    ]
    return {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]}


def write_files(folder: Path) -> None:
    """Writes the input, a rollup configuration, a tree and a declared table."""
    for name, (arrival_s, lines) in _files().items():
        path = folder / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.utime(path, (START_S + arrival_s, START_S + arrival_s))
    examples = Path(__file__).parents[2] / "examples"
    for source in ("rollups.json", "trees/hosts.json", "tables/metrics.toml", "tables/metrics.jsonl"):
        path = folder / Path(source).name
        path.write_bytes((examples / source).read_bytes())
        os.utime(path, (START_S, START_S))


def ingest(store: Sequence[str], name: str, *more: str) -> tuple[str, ...]:
    """The command that stores a file."""
    return ("ingest", *store, *JSON, "--input", f"{{folder}}/{name}", *LETTERS, *more)


def query(store: Sequence[str], metric: str, *more: str) -> tuple[str, ...]:
    """The command that reads a metric, every series by itself."""
    return ("query", metric, *store, *RANGE, "--aggregator", "none", "--output", "json-ms", *more)


def _questions(store: Sequence[str], rollups: Sequence[str] = ()) -> list[Step]:
    """Questions about the points, and about their rollups."""
    steps = [
        Step("points", query(store, "sys.cpu"), True),
        Step("debug points", query(store, "debug.x"), True),
        Step("check", ("check", *store)),
    ]
    if rollups:
        hourly = ("--downsample", "1h-sum", *rollups)
        steps.append(Step("rollups", query(store, "sys.cpu", *hourly), True))
    return steps


def _heroic_like(layout: str, *more: str) -> tuple[list[tuple[str, ...]], list[Step]]:
    """History and steps of a layout without UIDs: points before, in and after its archive."""
    store = ("--layout", layout, *more)
    history = [
        ("tables", "create", *store, "--set=archive=true"),
        ingest(store, "first.json"),
        ("archive", *store, "--older-than", "1h", "--quiet-hours", "0"),
        ingest(store, "second.json"),
        ingest(store, "late.json"),
    ]
    steps = [
        *_questions(store),
        Step("series", ("series", "sys.cpu", *store, "--output", "json"), True),
        Step(
            "seal again",
            (
                "archive",
                *store,
                "--older-than",
                "1h",
                "--quiet-hours",
                "0",
                "--delete-source",
                "--reader-hours",
                "0",
            ),
        ),
        *[step._replace(name=f"{step.name} after seal") for step in _questions(store)],
    ]
    return history, steps


HISTORIES: dict[str, tuple[list[tuple[str, ...]], list[Step]]] = {
    "opentsdb": (
        [
            (
                "tables",
                "create",
                *OPENTSDB,
                *ROLLUPS,
                "--set=salt_width=1",
                "--meta",
                "--trees",
                "--series-limits",
                "--set=names=escape",
                "--set=marked_since=2026-10-01",
            ),
            ("trees", "create", "{folder}/hosts.json", *OPENTSDB),
            ingest(OPENTSDB, "first.json", "--auto-create-metrics", "--packing", "points", "--meta", "full"),
            ingest(OPENTSDB, "second.json", "--packing", "append"),
            ingest(OPENTSDB, "names.json", "--packing", "compacted"),  # letters: unknown names
            (
                "ingest",
                *OPENTSDB,
                "--format",
                "opentsdb-annotations",
                "--input",
                "{folder}/notes.jsonl",
                *LETTERS,
            ),
            (
                "ingest",
                *OPENTSDB,
                "--format",
                "opentsdb-histogram",
                "--input",
                "{folder}/histograms.json",
                "--auto-create-metrics",
                *LETTERS,
            ),
            ("rollup", *OPENTSDB, *ROLLUPS, *ROUND, *LETTERS),
            ingest(OPENTSDB, "late.json", "--packing", "points"),
        ],
        [
            *_questions(OPENTSDB, ROLLUPS),
            Step("series", ("series", "sys.cpu", *OPENTSDB, "--output", "json"), True),
            Step(
                "replay",
                (
                    "replay",
                    *OPENTSDB,
                    "{folder}/refused-*.jsonl",
                    *JSON,
                    "--auto-create-metrics",
                    "--dead-letters",
                    "{folder}/again",
                ),
            ),
            Step("escaped names", query(OPENTSDB, "sys größe"), True),
            Step("follow", ("rollup", *OPENTSDB, *ROLLUPS, *ROUND, *LETTERS)),
            Step(
                "rollups after follow", query(OPENTSDB, "sys.cpu", "--downsample", "1h-sum", *ROLLUPS), True
            ),
            Step("compact", ("compact", *OPENTSDB, *RANGE[:2], "--end", str(END_S))),
            Step("points after compact", query(OPENTSDB, "sys.cpu"), True),
            Step("check at the end", ("check", *OPENTSDB)),
        ],
    ),
    "opentsdb-archive": (
        [
            ("tables", "create", *ARCHIVED, "--set=archive=true"),
            ingest(ARCHIVED, "first.json", "--auto-create-metrics"),
            ("archive", *ARCHIVED, "--older-than", "1h", "--quiet-hours", "0"),
            ingest(ARCHIVED, "second.json", "--packing", "append"),
            ("delete", *ARCHIVED, "--keep-days", "debug.*=7", "--unattended", "--log", "{folder}/deleted"),
            ingest(ARCHIVED, "late.json"),
            ingest(ARCHIVED, "first.json", "--auto-create-metrics"),
        ],
        [
            *_questions(ARCHIVED),
            # Its log is begun: the deletion that wrote it was killed, and the next one completes it.
            Step(
                "deletion goes on",
                (
                    "delete",
                    *ARCHIVED,
                    "--keep-days",
                    "debug.*=7",
                    "--unattended",
                    "--log",
                    "{folder}/deleted",
                ),
            ),
            Step("nothing left", query(ARCHIVED, "debug.x"), True),
            Step(
                "seal again",
                (
                    "archive",
                    *ARCHIVED,
                    "--older-than",
                    "1h",
                    "--quiet-hours",
                    "0",
                    "--delete-source",
                    "--reader-hours",
                    "0",
                ),
            ),
            Step("points after seal", query(ARCHIVED, "sys.cpu"), True),
        ],
    ),
    # Since compact, delete, archive and merge take leases, and refused records of a message share a letter.
    "rewritten": (
        [
            ("tables", "create", *REWRITTEN),
            ingest(REWRITTEN, "first.json", "--auto-create-metrics", "--packing", "points"),
            ("compact", *REWRITTEN, *RANGE[:2], "--end", str(END_S)),
            ingest(REWRITTEN, "second.json", "--packing", "append"),
            ("names", "merge", "metrics", "debug.x", "sys.cpu", *REWRITTEN, "--yes"),
            ("ingest", *REWRITTEN, "--format", "otlp", "--input", "{folder}/otlp.json", *LETTERS),
        ],
        [
            Step("points", query(REWRITTEN, "sys.cpu"), True),
            Step(
                "replay",
                (
                    "replay",
                    *REWRITTEN,
                    "{folder}/refused-*.jsonl",
                    *("--format", "otlp"),
                    "--auto-create-metrics",
                    "--dead-letters",
                    "{folder}/again",
                ),
            ),
            Step("replayed points", query(REWRITTEN, "sys.new"), True),
            Step("compact", ("compact", *REWRITTEN, *RANGE[:2], "--end", str(END_S))),
            Step("points after compact", query(REWRITTEN, "sys.cpu"), True),
            Step("check", ("check", *REWRITTEN)),
        ],
    ),
    "heroic": _heroic_like("heroic", "--table-prefix", "h-"),
    "heroic-readable": _heroic_like("heroic-readable"),
    "kairosdb": _heroic_like("kairosdb", "--set=row_spec=milliseconds"),
    "declared": (
        [
            ("tables", "create", *DECLARED),
            ("ingest", *DECLARED, "--format", "records", "--input", "{folder}/metrics.jsonl", *LETTERS),
        ],
        [
            Step(
                "records",
                ("query", "metric", "--where", "HOSTNAME=server1.aaa.bbb.com", *DECLARED, "--output", "json"),
                True,
            ),
            Step("check", ("check", *DECLARED)),
        ],
    ),
}
"""By the name of the state: the commands that made it, and the steps."""


def _killed_writer(target: Target) -> None:
    """What a writer and a follower leave that were killed long ago, in the hour from 03:00."""
    hour, writer, past_ms = 3, bytes(range(8)), START_S * 1000
    lease = writer + past_ms.to_bytes(8, "big") + (1 << hour).to_bytes(3, "big")
    cells = [Cell("t", bytes([hour]) + writer, past_ms, b"\1"), Cell("t", b"lease", 0, lease)]
    row = b"\0\0\1" + START_S.to_bytes(4, "big")
    write_all(target, "tsdb-touched", [Row("tsdb-touched", row, cells)])


def _killed_compaction(target: Target) -> None:
    """The lease of a compaction that was killed long ago."""
    ticket = {
        "ticket": 9,
        "run": "00" * 8,
        "command": "compact",
        "metrics": ["000001"],
        "start_s": START_S,
        "end_s": END_S,
        "renewed_ms": START_S * 1000,
    }
    cells = [
        Cell("settings", b"lease " + b"0" * 16, 0, json.dumps(ticket).encode()),
        Cell("settings", b"ticket", 0, (9).to_bytes(8, "big")),
    ]
    write_all(target, "rewritten-timebeam", [Row("rewritten-timebeam", b"leases", cells)])


def _record(name: str) -> Document:
    """Makes a state in the emulator of this process, takes the steps, and returns the state before them."""
    history, steps = HISTORIES[name]
    target = Target("states", name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_files(folder)
        for arguments in history:
            code = answer(Step("", arguments), target, folder)["code"]
            print(f"{name}: {' '.join(arguments)}: {code}", file=sys.stderr)
        if name == "opentsdb":
            _killed_writer(target)
        if name == "rewritten":
            _killed_compaction(target)
        for log in folder.glob("deleted-*-done.json"):
            log.rename(str(log).replace("-done.json", "-begun.json"))
        state = state_of(target, folder)
        for step in steps:
            state["answers"][step.name] = answer(step, target, folder)
    return state


def main(names: Sequence[str]) -> int:
    """Records states."""
    with Emulator() as emulator:
        os.environ[HOST_VARIABLE] = emulator.host
        for name in names or list(HISTORIES):
            save(_record(name), name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
