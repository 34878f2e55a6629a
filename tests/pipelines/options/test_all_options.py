"""All commands, all options, out of the one declaration: repeated, misspelt, without a value, at their ends.

What is wrong is one line with exit code 2. Nothing answers at the Bigtable of these commands, so that what
is right ends with the line that says so, before any work.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.commands import Ran, timebeam
from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.local.emulator import HOST_VARIABLE
from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.pipelines.options.command_line import CommandParser
from timebeam.pipelines.options.parameters import Parameter, boolean, flag, not_negative, positive, whole

NOWHERE = "localhost:1"
START = ("--start", "2026-11-20")
OPENTSDB = ("--layout", "opentsdb")
ROLLUPS = {
    "aggregationIds": {"sum": 0, "count": 1},
    "intervals": [
        {
            "table": "tsdb",
            "preAggregationTable": "tsdb",
            "interval": "1m",
            "rowSpan": "1h",
            "defaultInterval": True,
        },
        {
            "table": "tsdb-rollup-1h",
            "preAggregationTable": "tsdb-rollup-preagg-1h",
            "interval": "1h",
            "rowSpan": "1d",
        },
    ],
}

BASE: dict[str, tuple[str, ...]] = {
    "init": (),
    "config": (),
    "emulator": ("--build-only",),
    "tables": ("create", *OPENTSDB),
    "ingest": (*OPENTSDB, "--format", "influx", "--input", "points"),
    "replay": ("points", *OPENTSDB, "--format", "influx"),
    "generate": ("--output", "nowhere/points.json"),
    "query": ("sys.load", *OPENTSDB, *START),
    "serve": OPENTSDB,
    "series": ("sys.*", *OPENTSDB),
    "suggest": ("metrics", "sys.", *OPENTSDB),
    "cardinality": OPENTSDB,
    "names": ("list", *OPENTSDB),
    "meta": ("sync", *OPENTSDB),
    "trees": ("show",),
    "copy": ("--from", "opentsdb", "--to", "heroic", *START),
    "export": (*OPENTSDB, "--output", "nowhere", "--day", "2026-11-20"),
    "reindex": ("--layout", "heroic"),
    "rollup": (*OPENTSDB, "--rollup-config", "rollups.json", "--day", "2026-11-20"),
    "archive": (*OPENTSDB, "--set", "archive=true"),
    "delete": ("sys.load", *OPENTSDB, "--start", "2026-11-20", "--end", "2026-11-21"),
    "compact": (*OPENTSDB, "--day", "2026-11-20"),
    "check": OPENTSDB,
    "plan": (*OPENTSDB, "--series", "10"),
    "layout": ("check", "tables.toml"),
    "completion": ("bash",),
}
"""A line of each command that is right."""

ASSIGNED = ("set", "to_set")
"""Options whose values are values of others."""

NUMBERS = (whole, positive, not_negative)
NO_NUMBERS = ("-1", "-1e9", "nan", "inf", "", " ", "1_0", "\u0664", " 4", "1e999", "9" * 5000, "0x10", "--")
TEXTS = ("", "\x1b[2J", "a\nb", "é☃", "=", "=1", "..", "\udcff", "%s{}", "x" * 5000)
ENDS = ("0", "1e9", "999999999", str(2**63 - 1))


def declared(command: str) -> tuple[Parameter, ...]:
    """The options of a command."""
    return tuple(find_command(command).parameters)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of `BASE`."""
    folder = tmp_path_factory.mktemp("all-options")
    (folder / "points").write_text("cpu,host=a value=1 1795250200000000000\n")
    (folder / "rollups.json").write_text(json.dumps(ROLLUPS))
    example = Path(__file__).resolve().parents[3] / "examples" / "tables" / "market.toml"
    (folder / "tables.toml").write_bytes(example.read_bytes())
    return folder


@pytest.fixture(autouse=True)
def _nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands run in the folder, and the services do not answer."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv(HOST_VARIABLE, NOWHERE)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", NOWHERE)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def run(command: str, *arguments: str) -> Ran:
    """The base line of a command, and more; what it says is one line, or one and where to read more."""
    Path("timebeam.toml").unlink(missing_ok=True)  # of `timebeam init`
    ran = timebeam(command, *BASE[command], *arguments)
    lines = ran.err.splitlines()
    said = f"timebeam {command} {arguments}: {ran.code}: {ran.err[-2000:]}"
    assert "Traceback" not in ran.err, said
    if ran.code == 2:
        assert len(lines) == 2, said
        assert lines[0].startswith(f"timebeam {command}: "), said
        assert lines[1] == f"(see `timebeam {command} --help`)", said
    elif ran.code == 1:
        assert len(lines) == 1, said
        assert lines[0].startswith(f"timebeam {command}: "), said
    else:
        assert ran.code == 0, said
    assert all(map(str.isprintable, lines)), said
    return ran


@pytest.mark.parametrize("command", COMMANDS)
def test_the_line_that_the_others_are_made_of_is_right(command: str) -> None:
    ran = run(command)
    assert ran.code in (0, 1), ran.err
    if ran.code == 1:
        assert (NOWHERE if command != "generate" else "nowhere/points.json") in ran.err


@pytest.mark.parametrize("most", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("command", COMMANDS)
def test_misspelt(command: str, most: int) -> None:
    names = {parameter.name for parameter in declared(command)}
    for number, name in enumerate(sorted(names)):
        misspellings = turned((f"{name}{name[-1]}", name[:-1], f"x{name}"), number)[:most]
        for misspelt in set(misspellings) - names:
            ran = run(command, f"--{misspelt}=1")
            assert ran.code == 2, misspelt
            assert f"unknown option --{misspelt}" in ran.err
            assert "did you mean --" in ran.err or len(name) < 6, ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_value(command: str) -> None:
    for parameter in declared(command):
        ran = run(command, flag(parameter.name))
        if parameter.kind is not boolean:
            assert ran.code == 2, parameter.name
            assert f"{flag(parameter.name)}: expected " in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_repeated(command: str) -> None:
    for parameter in declared(command):
        if parameter.name in ASSIGNED:
            continue
        option = flag(parameter.name)
        values = two_values(parameter)
        if len(values) == 2 and not parameter.many:
            ran = run(command, *(f"{option}={value}" for value in values))
            assert ran.code == 2, option
            assert f"{option} is given twice" in ran.err
        parser = CommandParser([dataclasses.replace(parameter, required=False)])
        for value in values:
            once, twice = (parser.parse_args([f"{option}={value}"] * times) for times in (1, 2))
            assert parameter.many or once == twice, option


def two_values(parameter: Parameter) -> tuple[str, ...]:
    """Two different values of an option; none of a kind of its own."""
    if parameter.kind is boolean:
        return ("true", "false")
    if parameter.choices:
        return tuple(sorted(parameter.choices))[:2]
    if parameter.kind in (*NUMBERS, str):
        return ("0", "1") if parameter.most == 1 else ("1", "2")
    return ()


@pytest.mark.parametrize("command", COMMANDS)
def test_lists_add_up(command: str) -> None:
    for parameter in declared(command):
        if not parameter.many or parameter.name in ASSIGNED:
            continue
        option = flag(parameter.name)
        parser = CommandParser([parameter])
        for _ in range(2):  # the default is not what is added to
            options = parser.parse_args([option, "1", f"{option}=2", option, "3"])
            assert getattr(options, parameter.name) == [parameter.value_of(text) for text in "123"]


@pytest.mark.parametrize("most", [1, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("command", COMMANDS)
def test_at_its_ends(command: str, most: int) -> None:
    """Each option with `most` of the values that are wrong for it, and of those that may be; in turn."""
    for number, parameter in enumerate(declared(command)):
        option = flag(parameter.name)
        wrong, odd = ends_of(parameter)
        for value in turned(wrong, number)[:most]:
            assert run(command, f"{option}={value}").code == 2, (option, value)
        if option in BASE[command] or (
            command == "plan" and parameter in layout_parameters()
        ):  # plan is slow
            continue
        for value in turned(odd, number)[:most]:
            run(command, f"{option}={value}")


def ends_of(parameter: Parameter) -> tuple[Sequence[str], Sequence[str]]:
    """Values that an option must reject, and values that it may reject."""
    if parameter.kind in NUMBERS:
        return NO_NUMBERS, ENDS
    if parameter.kind is boolean or parameter.choices:
        return TEXTS[:4], ()
    return (), (*TEXTS, *ENDS)


def turned(values: Sequence[str], steps: int) -> list[str]:
    """The values from another one on."""
    start = steps % max(len(values), 1)
    return [*values[start:], *values[:start]]
