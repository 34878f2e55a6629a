"""A name from before 0.1.0 is a usage error that says what it is called now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import timebeam

INGEST = ("ingest", "--layout=opentsdb", "--format=influx", "--input=x")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("seal", "--layout=opentsdb"), "timebeam: unknown command 'seal': it is now archive"),
        ((*INGEST, "--max_refused=1"), "unknown option --max_refused: it is now --max-rejected"),
        ((*INGEST, "--max-refused=1"), "unknown option --max-refused: it is now --max-rejected"),
        ((*INGEST, "--mark_touched"), "unknown option --mark_touched: it is now --mark-changed"),
        ((*INGEST, "--influx_booleans=refuse"), "; it is now reject"),
        (("rollup", "--layout=opentsdb", "--touched"), "unknown option --touched: it is now --changed"),
        (
            ("cardinality", "--layout=opentsdb", "--refused=x"),
            "unknown option --refused: it is now --rejected",
        ),
    ],
)
def test_words_of_a_command_line(words: tuple[str, ...], message: str) -> None:
    ran = timebeam(*words)
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_keys_of_the_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timebeam.toml").write_text("mark_touched = true\n")
    ran = timebeam(*INGEST)
    message = "timebeam.toml: unknown key 'mark_touched': it is now mark_changed"
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMEBEAM_MARK_TOUCHED", "true")
    ran = timebeam(*INGEST)
    message = "TIMEBEAM_MARK_TOUCHED is now TIMEBEAM_MARK_CHANGED"
    assert (ran.code, message in ran.err) == (2, True), ran.err
