"""`timebeam init`: a settings file that every command reads, and never a file overwritten."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.commands import timebeam
from timebeam.pipelines.options.catalogue import setting_parameters
from timebeam.pipelines.options.profiles import FILE, Profiles


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST", raising=False)


def uncommented() -> str:
    """The file with the settings that its comments show."""
    lines = Path(FILE).read_text("utf-8").splitlines()
    shown = (
        line.removeprefix("# ") for line in lines if not line.startswith("#") or " = " in line or "[" in line
    )
    return "\n".join(line for line in shown if line.startswith("[") or " = " in line)


def test_the_file_is_for_the_emulator() -> None:
    ran = timebeam("init")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == f"wrote {FILE}; next:"
    assert len(ran.out.splitlines()) == 4
    assert tomllib.loads(Path(FILE).read_text("utf-8")) == {
        "layout": "opentsdb",
        "auto_create_metrics": True,
        "dead_letters": "dead-letters",
    }
    assert timebeam("config").code == 0


def test_the_file_is_for_an_instance() -> None:
    ran = timebeam("init", "--project", 'my-"project', "--instance", "metrics", "--layout", "kairosdb")
    assert ran.code == 0
    assert "emulator" not in ran.out
    settings = tomllib.loads(Path(FILE).read_text("utf-8"))
    assert (settings["project"], settings["instance"], settings["layout"]) == (
        'my-"project',
        "metrics",
        "kairosdb",
    )


def test_what_the_comments_show_can_be_used() -> None:
    assert timebeam("init").code == 0
    profiles = Profiles.parse(uncommented(), FILE, setting_parameters())
    settings = profiles.settings("prod")
    assert {"table_prefix", "salt_width", "row_spec", "project", "instance"} <= settings.keys()
    for name, setting in settings.items():
        setting.value(setting_parameters()[name])


def test_a_file_is_never_overwritten() -> None:
    Path(FILE).write_text("layout = 'heroic'\n")
    ran = timebeam("init")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"timebeam init: {FILE} exists already")
    assert Path(FILE).read_text() == "layout = 'heroic'\n"


def test_a_project_needs_an_instance() -> None:
    ran = timebeam("init", "--project", "p")
    assert ran.code == 2
    assert "give --project and --instance, or neither of them" in ran.err
    assert not Path(FILE).exists()


def test_a_folder_that_cannot_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timebeam.pipelines.commands.setup.FILE", "nowhere/timebeam.toml")
    ran = timebeam("init")
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1
    assert ran.err.startswith("timebeam init: ")
