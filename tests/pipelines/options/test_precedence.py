"""An option wins over a variable, a variable over the profile, the profile over the rest of the file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import Bigtable
from tests.support.commands import timebeam
from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.options.catalogue import setting_parameters
from timebeam.pipelines.options.profiles import FILE

LINE = ("--layout", "opentsdb", "--format", "influx", "--input", "points")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parsed(*arguments: str) -> argparse.Namespace:
    return find_command("ingest").parser().parse_args([*arguments])


def test_each_origin_wins_over_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (parsed(*LINE).salt_width, parsed(*LINE).origins["salt_width"]) == (0, "default")
    Path(FILE).write_text("salt_width = 1\n[profiles.p]\nsalt_width = 2\n")
    assert (parsed(*LINE).salt_width, parsed(*LINE).origins["salt_width"]) == (1, "timebeam.toml")
    of_profile = parsed(*LINE, "--profile", "p")
    assert (of_profile.salt_width, of_profile.origins["salt_width"]) == (2, "profile p of timebeam.toml")
    monkeypatch.setenv("TIMEBEAM_PROFILE", "p")
    assert parsed(*LINE).salt_width == 2
    monkeypatch.setenv("TIMEBEAM_SALT_WIDTH", "3")
    assert (parsed(*LINE).salt_width, parsed(*LINE).origins["salt_width"]) == (3, "TIMEBEAM_SALT_WIDTH")
    of_option = parsed(*LINE, "--set=salt_width=4")
    assert (of_option.salt_width, of_option.origins["salt_width"]) == (4, "--set salt_width")


def test_a_list_of_an_option_takes_the_place_of_that_of_the_file() -> None:
    Path(FILE).write_text('formats = ["influx", "avro"]\n')
    assert parsed(*LINE).formats == ["influx", "avro"]
    assert parsed(*LINE, "--formats", "opentsdb-text", "--formats", "avro").formats == [
        "opentsdb-text",
        "avro",
    ]


def test_a_required_option_may_come_from_the_file() -> None:
    Path(FILE).write_text('layout = "opentsdb"\nformat = "influx"\nauto_create_metrics = true\n')
    options = parsed("--input", "points")
    assert (options.layout, options.format, options.auto_create_metrics) == ("opentsdb", "influx", True)


def test_the_file_of_the_option_and_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.toml").write_text("salt_width = 1\n")
    Path("b.toml").write_text("salt_width = 2\n")
    monkeypatch.setenv("TIMEBEAM_CONFIG", "a.toml")
    assert parsed(*LINE).origins["salt_width"] == "a.toml"
    assert parsed(*LINE, "--config", "b.toml").salt_width == 2


def test_help_needs_no_settings() -> None:
    Path(FILE).write_text("nonsense")
    assert timebeam("ingest", "--help").code == 0
    ran = timebeam("ingest", *LINE)
    assert ran.code == 2
    assert ran.err.startswith("timebeam ingest: timebeam.toml is not TOML: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("salt_wdth = 1", "timebeam check: timebeam.toml: unknown key 'salt_wdth': did you mean salt_width?"),
        ("salt_width = 'x'", "timebeam check: timebeam.toml: salt_width: 'x' is not a whole number"),
        ("layout = 'heroik'", "timebeam check: timebeam.toml: layout: 'heroik' must be one of"),
    ],
)
def test_what_is_wrong_with_the_file_is_one_line(text: str, message: str) -> None:
    Path(FILE).write_text(text)
    ran = timebeam("check")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(message)
    assert len(ran.err.splitlines()) == 2


def declared() -> list[tuple[str, str]]:
    return [
        (command, parameter.name)
        for command in COMMANDS
        for parameter in find_command(command).parameters
        if parameter.setting
    ]


def test_a_setting_means_the_same_in_every_command() -> None:
    settings = setting_parameters()
    for command, name in declared():
        for parameter in find_command(command).parameters:
            if parameter.name == name:
                same = settings[name]
                assert (parameter.kind, parameter.many, parameter.most) == (
                    same.kind,
                    same.many,
                    same.most,
                ), (
                    command,
                    name,
                )


def config(*arguments: str) -> dict[str, Sequence[str | None]]:
    ran = timebeam("config", "--output", "json", *arguments)
    assert ran.code == 0, ran.err
    return {name: (row["value"], row["origin"]) for name, row in json.loads(ran.out).items()}


def test_config_prints_every_setting_with_its_origin(
    bigtable: Bigtable, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(FILE).write_text(
        f"project = '{bigtable.project}'\ninstance = '{bigtable.instance}'\ntable_prefix = '{prefix}'\n"
        "[profiles.p]\nlayout = 'opentsdb'\nformats = ['avro', 'influx']\n"
    )
    monkeypatch.setenv("TIMEBEAM_BIGTABLE_WRITER", "beam")
    assert timebeam("tables", "create", "--profile", "p", "--set=salt_width=1").code == 0
    shown = config("--profile", "p")
    assert set(shown) == set(setting_parameters())
    assert shown["layout"] == ("opentsdb", "profile p of timebeam.toml")
    assert shown["formats"] == ("avro,influx", "profile p of timebeam.toml")
    assert shown["project"] == (bigtable.project, "timebeam.toml")
    assert shown["bigtable_writer"] == ("beam", "TIMEBEAM_BIGTABLE_WRITER")
    assert shown["salt_width"] == ("1", f"table {prefix}timebeam")
    assert shown["dead_letters"] == ("dead-letters", "default")
    assert shown["app_profile"] == (None, "default")
    assert config()["layout"] == ("opentsdb", f"table {prefix}timebeam")


def test_config_says_what_contradicts_the_tables(bigtable: Bigtable, prefix: str) -> None:
    Path(FILE).write_text(
        f"project = '{bigtable.project}'\ninstance = '{bigtable.instance}'\ntable_prefix = '{prefix}'\n"
        "layout = 'opentsdb'\n[profiles.wrong]\nsalt_width = 1\n"
    )
    assert timebeam("tables", "create").code == 0
    ran = timebeam("config", "--profile", "wrong")
    assert ran.code == 2
    assert "salt_width           1                        profile wrong of timebeam.toml" in ran.out
    assert f"table {prefix}timebeam says" in ran.err


def test_config_warns_of_a_misspelt_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("TIMEBEAM_LAYUOT", "heroic")
    monkeypatch.setenv("TIMEBEAM_PORT_8080_TCP", "of Kubernetes")
    ran = timebeam("config")
    assert ran.code == 0
    assert ran.err == "warning: no setting LAYUOT for the variable TIMEBEAM_LAYUOT: did you mean LAYOUT?\n"
