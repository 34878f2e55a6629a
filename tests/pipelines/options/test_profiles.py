"""timebeam.toml: what it may hold, and what is said of what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.localfilesystem import LocalFileSystem

from timebeam.pipelines.options.command_line import given_settings
from timebeam.pipelines.options.parameters import Parameter, UsageError, boolean, whole
from timebeam.pipelines.options.profiles import FILE, Profiles, Setting, read_profiles, variables

NAMES = ("layout", "salt_width", "formats", "auto_create_metrics", "project")

TEXT = """\
layout = "opentsdb"
salt_width = 1
auto_create_metrics = true

[profiles.prod]
project = "my-project"
salt_width = 2
formats = ["influx", "opentsdb-text"]
"""


def parsed(text: str) -> Profiles:
    return Profiles.parse(text, FILE, NAMES)


def test_shared_settings_hold_without_a_profile() -> None:
    assert parsed(TEXT).settings(None) == {
        "layout": Setting(("opentsdb",), FILE),
        "salt_width": Setting(("1",), FILE),
        "auto_create_metrics": Setting(("true",), FILE),
    }


def test_a_profile_goes_over_the_shared_settings() -> None:
    origin = f"profile prod of {FILE}"
    assert parsed(TEXT).settings("prod") == parsed(TEXT).settings(None) | {
        "project": Setting(("my-project",), origin),
        "salt_width": Setting(("2",), origin),
        "formats": Setting(("influx", "opentsdb-text"), origin),
    }


def test_a_table_of_retention_is_the_option_keep_days() -> None:
    names = (*NAMES, "retention", "keep_days")
    text = (
        '[retention]\n"a.*" = 7\n"*" = {points = 30, rollups = "forever"}\n[profiles.p.retention]\n"*" = 1\n'
    )
    profiles = Profiles.parse(text, FILE, names)
    assert profiles.settings(None) == {"keep_days": Setting(("a.*=7", "*=30/forever"), FILE)}
    assert profiles.settings("p") == {"keep_days": Setting(("*=1",), f"profile p of {FILE}")}
    of_kairosdb = Profiles.parse('retention = "7,90"', FILE, names)
    assert of_kairosdb.settings(None) == {"retention": Setting(("7,90",), FILE)}
    with pytest.raises(UsageError, match="keep_days and a table retention: give one of them"):
        Profiles.parse('keep_days = ["7"]\n[retention]\n"*" = 7\n', FILE, names)
    with pytest.raises(UsageError, match=r"timebeam\.toml, profile p: retention: a: 'x' is not a whole"):
        Profiles.parse('[profiles.p.retention]\na = "x"\n', FILE, names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layuot = 'x'", "timebeam.toml: unknown key 'layuot': did you mean layout?"),
        ("profile = 'prod'", "timebeam.toml: unknown key 'profile': did you mean profiles?"),
        ("[profiles.p]\nzzz = 1", "timebeam.toml, profile p: unknown key 'zzz'"),
        ("[profiles.p.layout]\nx = 1", "timebeam.toml, profile p: layout must be a string, a number, true"),
        ("layout = [1, [2]]", "timebeam.toml: layout must be a string"),
        ("layout = 2026-11-20", "timebeam.toml: layout must be a string"),
        ("profiles = 1", "timebeam.toml: profiles must be tables: [profiles.NAME]"),
        ("[profiles]\np = 1", "timebeam.toml, profile p: a profile is a table: [profiles.p]"),
        ("layout = ", "timebeam.toml is not TOML: Invalid value (at end of document)"),
        ("layout = " + "[" * 5_000, "timebeam.toml has too many levels of arrays or tables"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parsed(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("prd", "timebeam.toml: no profile 'prd': did you mean prod?"),
        ("x", "timebeam.toml: no profile 'x': it has prod"),
    ],
)
def test_an_unknown_profile_is_an_error(profile: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parsed(TEXT).settings(profile)
    assert str(error.value) == message


def test_a_profile_without_a_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_profiles(None, NAMES).settings(None) == {}
    with pytest.raises(UsageError, match=r"no timebeam\.toml .* --config FILE"):
        read_profiles(None, NAMES).settings("prod")


def test_the_file_of_the_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(TEXT)
    assert read_profiles(None, NAMES) == parsed(TEXT)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"cannot read the settings nowhere\.toml"):
        read_profiles("nowhere.toml", NAMES)
    (tmp_path / FILE).write_bytes(b"layout = '\xff'")
    with pytest.raises(UsageError, match=r"settings timebeam\.toml are not UTF-8"):
        read_profiles(None, NAMES)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(UsageError, match=r"cannot read the settings timebeam\.toml"):
        read_profiles(None, NAMES)


def test_a_value_that_an_option_does_not_take_names_its_origin() -> None:
    salt, auto = Parameter("salt_width", "", "", whole), Parameter("auto", "", "", boolean)
    layout = Parameter("layout", "", "", choices=("opentsdb", "heroic"))
    formats = Parameter("formats", "", "", many=True)
    assert Setting(("1",), FILE).value(salt) == 1
    assert Setting(("true",), FILE).value(auto) is True
    assert Setting(("a", "b"), FILE).value(formats) == ["a", "b"]
    for texts, parameter, message in (
        (("x",), salt, "timebeam.toml: salt_width: 'x' is not a whole number"),
        (
            ("opentsd",),
            layout,
            "timebeam.toml: layout: 'opentsd' must be one of opentsdb, heroic: did you mean",
        ),
        (("1", "2"), salt, "timebeam.toml: salt_width takes one value, not 2"),
    ):
        with pytest.raises(UsageError) as error:
            Setting(texts, FILE).value(parameter)
        assert message in str(error.value)


def test_variables_give_settings_unless_they_are_empty() -> None:
    parameters = [Parameter(name, "", "", many=name == "formats") for name in NAMES]
    environment = {
        "TIMEBEAM_LAYOUT": "heroic",
        "TIMEBEAM_PROJECT": "",
        "TIMEBEAM_FORMATS": "a b",
        "HOME": "/",
    }
    assert variables(environment, parameters) == {
        "layout": Setting(("heroic",), "TIMEBEAM_LAYOUT"),
        "formats": Setting(("a", "b"), "TIMEBEAM_FORMATS"),
    }


class BucketFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A file system of Beam whose files are local ones: `bucket:///PATH`."""

    @classmethod
    def scheme(cls) -> str:
        return "bucket"

    def open(self, path: str, *arguments: Any, **named: Any) -> Any:
        return super().open(path.removeprefix("bucket://"), *arguments, **named)


def test_a_settings_file_on_a_file_system_of_beam(tmp_path: Path) -> None:
    """As a template reads it from a bucket."""
    path = tmp_path / "timebeam.toml"
    path.write_text('layout = "heroic"\n[profiles.prod]\ntable_prefix = "prod-"\n')
    settings = given_settings(f"bucket://{path}", "prod", {})
    assert {name: setting.texts for name, setting in settings.items()} == {
        "layout": ("heroic",),
        "table_prefix": ("prod-",),
    }
    with pytest.raises(UsageError, match=r"cannot read the settings bucket:///nowhere/timebeam.toml"):
        given_settings("bucket:///nowhere/timebeam.toml", None, {})
