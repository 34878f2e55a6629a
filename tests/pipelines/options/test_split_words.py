"""Command lines: both spellings, booleans, options that repeat, arguments, and options of Beam."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from timebeam.pipelines.commands import find_command
from timebeam.pipelines.options.parameters import UsageError

INGEST = ("--layout=opentsdb", "--format=influx")


def parsed(command: str, *words: str) -> tuple[argparse.Namespace, list[str]]:
    return find_command(command).parse(words)


def error(command: str, *words: str) -> str:
    with pytest.raises(UsageError) as wrong:
        parsed(command, *words)
    return str(wrong.value)


@pytest.mark.parametrize("word", ["--dry-run", "--dry_run", "--dry-run=true", "--dry_run=True"])
def test_both_spellings(word: str) -> None:
    options, rest = parsed("ingest", *INGEST, word)
    assert (options.dry_run, options.origins["dry_run"], rest) == (True, "--dry-run", [])


def test_booleans() -> None:
    assert parsed("ingest", *INGEST)[0].auto_create_tagks is True
    for word in ("--no-auto-create-tagks", "--no_auto_create_tagks", "--auto-create-tagks=false"):
        assert parsed("ingest", *INGEST, word)[0].auto_create_tagks is False
    assert "give --dry-run=false" in error("ingest", *INGEST, "--dry-run", "false")
    assert "--no-dry-run: has no value" in error("ingest", *INGEST, "--no-dry-run=true")
    assert "--dry-run: 'x' is neither true nor false" in error("ingest", *INGEST, "--dry_run=x")
    assert "--dry-run is given twice" in error("ingest", *INGEST, "--dry-run", "--no-dry-run")
    assert "unknown option --no-salt-width" in error("ingest", *INGEST, "--no-salt-width")


def test_an_option_of_several_values_repeats() -> None:
    words = ("--tag", "host=a", "--tag=dc=b", "--start=1h-ago", "sys.cpu", "--layout", "opentsdb")
    options, _ = parsed("query", *words)
    assert (options.tag, options.metric) == (["host=a", "dc=b"], "sys.cpu")


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("query", ("--tag", "host=a", "dc=b"), "repeat it: --tag host=a --tag dc=b"),
        ("query", ("m", "--group_by", "host", "core"), "repeat it: --group-by host --group-by core"),
        ("query", ("m", "--percentiles", "50", "99"), "repeat it: --percentiles 50 --percentiles 99"),
        ("delete", ("--keep-days", "debug.*=7", "400"), "repeat it: --keep-days debug.*=7 --keep-days 400"),
        ("ingest", (*INGEST, "--formats", "avro", "otlp"), "repeat it: --formats avro --formats otlp"),
    ],
)
def test_several_words_after_an_option_are_wrong(command: str, words: tuple[str, ...], said: str) -> None:
    assert said in error(command, *words)


def test_an_argument_may_follow_an_option_of_several_values() -> None:
    words = ("--tag", "host=a", "sys.cpu", "--layout=opentsdb")
    assert parsed("series", *words)[0].metric == "sys.cpu"


def test_input_takes_all_words_up_to_the_next_option() -> None:
    options, rest = parsed("ingest", "--input", "a", "b", "c", *INGEST, "--input", "d", "--input=e")
    assert (options.input, rest) == (["a", "b", "c", "d", "e"], [])
    assert "unexpected argument 'b'" in error("ingest", *INGEST, "--input=a", "b")


def test_words_after_two_dashes_are_arguments() -> None:
    assert parsed("query", "--layout=opentsdb", "--start=-5", "--", "--m")[0].metric == "--m"


def test_negative_numbers_are_values() -> None:
    assert parsed("query", "--layout=opentsdb", "--start", "-5", "m")[0].start == "-5"


def test_options_of_beam_have_their_own_values() -> None:
    words = ("sys.cpu", "--start=0", "--layout=opentsdb")
    options, rest = parsed("delete", "--region", "europe-west1", "--streaming", *words, "--max_num_workers=3")
    assert options.metric == "sys.cpu"
    assert rest == ["--region", "europe-west1", "--streaming", "--max_num_workers=3"]


@pytest.mark.parametrize(
    ("command", "word", "said"),
    [
        ("ingest", "--regoin=x", "unknown option --regoin: did you mean --region?"),
        ("ingest", "--dry_rum", "unknown option --dry_rum: did you mean --dry-run?"),
        ("ingest", "--temp-locatio=x", "unknown option --temp-locatio: did you mean --temp_location?"),
        ("query", "--region=x", "unknown option --region"),
        ("query", "-x", "unknown option -x"),
    ],
)
def test_an_option_that_no_list_has(command: str, word: str, said: str) -> None:
    assert error(command, *(INGEST if command == "ingest" else ("m",)), word).startswith(said)


COPY = ("--from=opentsdb", "--to=opentsdb", "--start=0")


@pytest.mark.parametrize("name", ["salt_width", "salt-width"])
def test_settings_of_tables_are_set(name: str) -> None:
    options, _ = parsed("query", "m", "--layout=opentsdb", "--set", f"{name}=1", "--set=names=escape")
    assert (options.salt_width, options.names, options.salt_buckets) == (1, "escape", 20)
    assert options.origins["salt_width"] == "--set salt_width"
    assert options.origins["salt_buckets"] == "default"


def test_a_copy_has_settings_of_both_sides() -> None:
    options, _ = parsed("copy", *COPY, "--set=salt_width=1", "--to-set=salt_width=2", "--to_set=names=escape")
    assert (options.salt_width, options.to_salt_width, options.to_names, options.names) == (
        1,
        2,
        "escape",
        None,
    )
    assert options.origins["to_salt_width"] == "--to-set salt_width"


def test_options_of_tables_are_settings_too() -> None:
    for word in ("--salt-width=1", "--set=salt_width=1"):
        assert parsed("tables", "create", "--layout=opentsdb", word)[0].salt_width == 1
    twice = ("--salt-width=1", "--set=salt_width=2")
    assert "is given twice" in error("tables", "create", "--layout=opentsdb", *twice)


def test_settings_win_over_variables_and_these_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("timebeam.toml").write_text('salt-width = 3\nlayout = "opentsdb"\nmax_tags = 9\n')
    options, _ = parsed("query", "m")
    assert (options.salt_width, options.origins["salt_width"]) == (3, "timebeam.toml")
    assert options.max_tags == 9
    monkeypatch.setenv("TIMEBEAM_SALT_WIDTH", "2")
    assert parsed("query", "m")[0].origins["salt_width"] == "TIMEBEAM_SALT_WIDTH"
    assert parsed("query", "m", "--set=salt_width=1")[0].salt_width == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set=salt_wdth=1",), "argument --set: no setting 'salt_wdth': did you mean salt_width?"),
        (("--set=max_tags=1",), "argument --set: no setting 'max_tags'"),
        (("--set=layout=opentsdb",), "argument --set: no setting 'layout', but an option --layout"),
        (("--set=x",), "argument --set: 'x' is not NAME=VALUE"),
        (("--set=salt_width=x",), "argument --set salt_width: 'x' is not a whole number"),
        (("--set=row_spec=milisecond",), "did you mean milliseconds?"),
        (("--set=salt_width=1", "--set=salt_width=2"), "--set salt_width is given twice"),
        (("--salt-width=1",), "unknown option --salt-width: give --set salt_width=1"),
        (("--no_archive",), "unknown option --no_archive: give --set archive=false"),
        (("--salt-widht=1",), "unknown option --salt-widht: did you mean --set salt_width?"),
        (("--to-set=salt_width=1",), "unknown option --to-set"),
    ],
)
def test_settings_that_are_wrong(words: tuple[str, ...], said: str) -> None:
    assert said in error("query", "m", "--layout=opentsdb", *words)


def test_what_writers_choose_is_an_option_of_theirs() -> None:
    options, _ = parsed("ingest", *INGEST, "--max-tags=9", "--decimals=double")
    assert (options.max_tags, options.decimals) == (9, "double")
    assert parsed("copy", *COPY, "--to-max-tags=9")[0].to_max_tags == 9
    assert "unknown option --max-tags" in error("query", "m", "--layout=opentsdb", "--max-tags=9")
