"""Help: a usage of three lines and a screen of common options for every command, or all of them."""

from __future__ import annotations

import re

import pytest

from tests.support.commands import timebeam
from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.options.catalogue import chosen, format_parameters
from timebeam.pipelines.options.help_text import spelled
from timebeam.schema.formats import FORMATS

SCREEN = 45
USAGE = 3


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen(command: str) -> None:
    ran = timebeam(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    usage = lines[: lines.index("")]
    assert len(lines) <= SCREEN
    assert len(usage) <= USAGE
    assert usage[0].startswith(f"usage: timebeam {command} ")
    assert max(map(len, lines)) <= 110
    assert re.fullmatch(rf"more: `timebeam {command} --help-all`, docs/\S+\.md", lines[-1])
    assert 1 <= sum(line.startswith("  timebeam ") for line in lines) <= 3
    assert "(default: [])" not in ran.out
    assert timebeam("help", command).out == ran.out


@pytest.mark.parametrize("command", COMMANDS)
def test_all_options_are_shown_on_request(command: str) -> None:
    shown = timebeam(command, "--help-all").out
    declared = find_command(command).parser().parameters
    assert [each.name for each in declared if f"  {spelled(each)}" not in shown] == []
    assert "(default: [])" not in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_common_options_are_some_of_all(command: str) -> None:
    declared = find_command(command)
    common = chosen(command, declared.common)
    names = {each.name for each in common}
    assert names <= {each.name for each in declared.parameters}
    if common:
        assert {each.name for each in declared.parameters if each.required} <= names | {"layout"}


@pytest.mark.parametrize("name", FORMATS)
def test_options_of_a_format(name: str) -> None:
    shown = timebeam("help", "format", name).out
    for each in format_parameters():
        assert (f"  {spelled(each)}" in shown) == (name in (each.shown_for or ("", (name,)))[1]), each.name


def test_formats_by_name() -> None:
    assert set(FORMATS) < set(timebeam("help", "format").out.split())
    ran = timebeam("help", "format", "inflx")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("timebeam: unknown format 'inflx': did you mean influx?")
