"""All commands, all options, out of the one declaration: repeated, misspelt, without a value, at their ends.

What is wrong is one line with exit code 2. Nothing answers at the Bigtable of these commands, so that what
is right ends with the line that says so, before any work.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Ran, timebeam
from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.local.emulator import HOST_VARIABLE
from timebeam.pipelines.options.command_line import Command
from timebeam.pipelines.options.parameters import LAYOUT, Parameter, boolean, not_negative, positive, whole

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
    "emulator": ("--build_only",),
    "tables": ("create", *OPENTSDB),
    "ingest": (*OPENTSDB, "--format", "influx", "--input", "points"),
    "replay": ("points", *OPENTSDB, "--format", "influx"),
    "generate": ("--output", "nowhere/points.json"),
    "query": ("sys.load", *OPENTSDB, *START),
    "serve": OPENTSDB,
    "series": ("sys.*", *OPENTSDB),
    "suggest": ("metrics", "sys.", *OPENTSDB),
    "meta": ("sync", *OPENTSDB),
    "trees": ("show",),
    "copy": ("--from", "opentsdb", "--to", "heroic", *START),
    "reindex": ("--layout", "heroic"),
    "rollup": (*OPENTSDB, "--rollup_config", "rollups.json", "--day", "2026-11-20"),
    "compact": (*OPENTSDB, "--day", "2026-11-20"),
    "check": OPENTSDB,
    "plan": (*OPENTSDB, "--series", "10"),
    "layout": ("check", "tables.toml"),
    "completion": ("bash",),
}
"""A line of each command that is right."""

NUMBERS = (whole, positive, not_negative)
NO_NUMBERS = ("-1", "-1e9", "nan", "inf", "", " ", "1_0", "\u0664", " 4", "1e999", "9" * 5000, "0x10", "--")
TEXTS = ("", "\x1b[2J", "a\nb", "é☃", "=", "=1", "..", "\udcff", "%s{}", "x" * 5000)
ENDS = ("0", "1e9", "999999999", str(2**63 - 1))


def declared(command: str) -> tuple[Parameter, ...]:
    """The options of a command."""
    return tuple(find_command(command).parameters)


OPTIONS = [
    pytest.param(command, parameter, id=f"{command}-{parameter.name}")
    for command in COMMANDS
    for parameter in declared(command)
]


@pytest.fixture(autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the files of `BASE`, and services that do not answer."""
    folder = tmp_path_factory.getbasetemp() / "all-options"
    folder.mkdir(exist_ok=True)
    (folder / "points").write_text("cpu,host=a value=1 1795250200000000000\n")
    (folder / "rollups.json").write_text(json.dumps(ROLLUPS))
    (folder / "timebeam.toml").unlink(missing_ok=True)  # of `timebeam init`
    example = Path(__file__).resolve().parents[3] / "examples" / "tables" / "market.toml"
    (folder / "tables.toml").write_bytes(example.read_bytes())
    monkeypatch.chdir(folder)
    monkeypatch.setenv(HOST_VARIABLE, NOWHERE)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", NOWHERE)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def run(command: str, *arguments: str) -> Ran:
    """The base line of a command, and more; what it says is one line, or one and where to read more."""
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


@pytest.mark.parametrize(("command", "parameter"), OPTIONS)
def test_misspelt(command: str, parameter: Parameter) -> None:
    name = parameter.name
    names = {each.name for each in declared(command)}
    for misspelt in {f"{name}{name[-1]}", name[:-1], f"x{name}"} - names:
        ran = run(command, f"--{misspelt}=1")
        assert ran.code == 2, misspelt
        assert f"unknown option --{misspelt}" in ran.err
        assert "did you mean --" in ran.err or len(name) < 6, ran.err


@pytest.mark.parametrize(("command", "parameter"), OPTIONS)
def test_without_a_value(command: str, parameter: Parameter) -> None:
    ran = run(command, f"--{parameter.name}")
    if parameter.kind is not boolean:
        assert ran.code == 2
        assert f"--{parameter.name}: expected " in ran.err


@pytest.mark.parametrize(("command", "parameter"), OPTIONS)
def test_repeated(command: str, parameter: Parameter) -> None:
    option = f"--{parameter.name}"
    if parameter.kind is boolean:
        values = ("true", "false")
    elif parameter.choices:
        values = tuple(sorted(parameter.choices))[:2]
    elif parameter.kind in (*NUMBERS, str):
        values = ("0", "1") if parameter.most == 1 else ("1", "2")
    else:
        values = ()
    if len(values) == 2 and not parameter.many:
        ran = run(command, option, values[0], option, values[1])
        assert ran.code == 2
        assert f"{option} is given twice" in ran.err
    parser = Command(command, "", [dataclasses.replace(parameter, required=False)], "").parser()
    for value in values:
        once, twice = (parser.parse_args([option, value] * times) for times in (1, 2))
        assert parameter.many or once == twice


@pytest.mark.parametrize(("command", "parameter"), [each for each in OPTIONS if each.values[1].many])
def test_lists_add_up(command: str, parameter: Parameter) -> None:
    option = f"--{parameter.name}"
    parser = Command(command, "", [parameter], "").parser()
    for _ in range(2):  # the default is not what is added to
        options = parser.parse_args([option, "1", "2", option, "3"])
        assert getattr(options, parameter.name) == [parameter.value_of(text) for text in "123"]


@pytest.mark.parametrize(("command", "parameter"), OPTIONS)
def test_at_its_ends(command: str, parameter: Parameter) -> None:
    option = f"--{parameter.name}"
    if parameter.kind in NUMBERS:
        for value in NO_NUMBERS:
            assert run(command, f"{option}={value}").code == 2, value
        values = ENDS
    elif parameter.kind is boolean or parameter.choices:
        for value in TEXTS[:4]:
            assert run(command, f"{option}={value}").code == 2, value
        values = ()
    else:
        values = (*TEXTS, *ENDS)
    if option in BASE[command] or (command == "plan" and parameter in LAYOUT):  # plan is slow
        return
    for value in values:
        run(command, f"{option}={value}")
