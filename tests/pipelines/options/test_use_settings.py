"""Stored settings: written by `tables create` and `adopt`, compared and used by whoever opens the tables."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

from tests.conftest import Bigtable
from tests.support.parsed import place_of
from tests.support.place import OPENTSDB, POINTS, Place, contradiction
from timebeam.pipelines.commands import COMMANDS
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.store_settings import store_new
from timebeam.pipelines.options.use_settings import settings_table
from timebeam.transforms.bigtable.create_tables import create_tables, drop_table
from timebeam.transforms.bigtable.target import BigtableError, NoPermissionError, Target

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def place(bigtable: Bigtable, prefix: str, tmp_path: Path) -> Place:
    return Place(bigtable, prefix, tmp_path)


def test_create_stores_what_the_bytes_depend_on(place: Place) -> None:
    ran = place.run("tables", "create", "--layout", "opentsdb", "--set=salt_width=1")
    assert ran.code == 0
    assert f"created table {place.table}, families settings (newest 1)" in ran.out
    assert "stored settings of layout opentsdb: salt_width 1, salt_buckets 20," in ran.out
    assert place.rows() == {"opentsdb": OPENTSDB}
    again = place.run("tables", "create", "--layout", "opentsdb")
    assert (again.code, "stored" in again.out) == (0, False)
    assert place.rows() == {"opentsdb": OPENTSDB}


def test_each_layout_has_a_row_of_its_own(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "heroic-readable", "--set=resource_names=true").code == 0
    assert place.run("tables", "create", "--layout", "kairosdb", "--set=row_spec=milliseconds").code == 0
    assert place.rows() == {
        "heroic-readable": {"version": "1", "resource_names": "true"},
        "kairosdb": {"version": "1", "row_spec": "milliseconds"},
    }
    ran = place.run("check")
    contradiction(ran, f"table {place.table} has settings of heroic-readable, kairosdb: give --layout")


def test_layouts_of_one_prefix_do_not_share_an_archive(place: Place) -> None:
    """Each would read the rows of the other as corruption."""
    assert place.run("tables", "create", "--layout", "opentsdb", "--archive").code == 0
    create = ("tables", "create", "--layout", "kairosdb")
    rejected = place.run(*create, "--archive")
    contradiction(rejected, f"table {place.prefix}archive is that of layout opentsdb", "(--table-prefix)")
    assert list(place.rows()) == ["opentsdb"]
    assert place.run(*create).code == 0
    assert place.run("tables", "create", "--layout", "opentsdb", "--set=archive=true").code == 0


def test_an_archive_that_two_layouts_say_is_theirs_is_not_written_or_read(place: Place) -> None:
    """Two programs that adopt tables at once each see that there is no other archive."""
    tables = ("tables", "create", "--layout", "opentsdb", "--set=archive=true")
    assert place.run(*tables).code == 0
    place.write("kairosdb", version="1", row_spec="standard", archive="true")
    other = f"table {place.prefix}archive is that of layout"
    for layout, owner in (("opentsdb", "kairosdb"), ("kairosdb", "opentsdb")):
        contradiction(place.run("check", "--layout", layout), f"{other} {owner}", "--no-archive")
        contradiction(place.run("archive", "--layout", layout), f"{other} {owner}", "--no-archive")
    place.write("kairosdb", archive="false")
    assert place.run("check", "--layout", "opentsdb").code == 0


def test_a_dry_run_stores_nothing(place: Place) -> None:
    ran = place.run("tables", "create", "--layout", "opentsdb", "--dry-run")
    assert f"would create table {place.table}" in ran.out
    assert "would store settings of layout opentsdb: salt_width 0" in ran.out
    assert place.rows() == {}


def test_what_is_not_given_is_taken_from_the_tables(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb", "--set=salt_width=1").code == 0
    assert place.ingest().code == 0
    ran = place.run("query", "sys.load", "--start", "2026-11-21")
    assert (ran.code, "50 points" in ran.out) == (0, True), ran
    assert "corrupt: 0" in place.run("check").out
    assert place.run("suggest", "metrics").out == "sys.load\n"


def test_a_wrong_option_stops_every_command(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb", "--set=salt_width=1").code == 0
    assert place.ingest("--set=salt_width=1").code == 0
    wrong = ("--layout", "opentsdb", "--set=salt_width=2")
    start = ("--start", "2026-11-21")
    lines = {
        "tables": ("tables", "create", *wrong),
        "ingest": ("ingest", *wrong, "--format", "opentsdb-text", "--input", "x"),
        "replay": ("replay", "x", *wrong, "--format", "opentsdb-text"),
        "query": ("query", "sys.load", *wrong, *start),
        "series": ("series", "*", *wrong),
        "suggest": ("suggest", "metrics", *wrong),
        "cardinality": ("cardinality", *wrong),
        "meta": ("meta", "sync", *wrong),
        "names": ("names", "list", *wrong),
        "delete": ("delete", "sys.load", *wrong, *start),
        "archive": ("archive", *wrong, "--set=archive=true"),
        "trees": ("trees", "show", *wrong),
        "copy": ("copy", "--from", "opentsdb", "--set=salt_width=2", "--to", "heroic", *start),
        "export": ("export", *wrong, "--output", "x"),
        "reindex": ("reindex", *wrong),
        "rollup": ("rollup", *wrong, "--rollup-config", "x"),
        "compact": ("compact", *wrong),
        "check": ("check", *wrong),
        "serve": ("serve", *wrong),
    }
    without_tables = {"init", "config", "emulator", "generate", "plan", "layout", "completion"}
    assert lines.keys() | without_tables >= set(COMMANDS)
    for line in lines.values():
        contradiction(
            place.run(*line),
            "--set salt_width says salt_width 2",
            f"table {place.table} says",
            "has 1 here",
            "leave it out",
        )


def test_a_setting_that_the_layout_does_not_have_is_an_error(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb").code == 0
    text = "--set row_spec: layout opentsdb has no such setting: choose from salt_width,"
    contradiction(place.run("check", "--layout", "opentsdb", "--set=row_spec=legacy"), text)
    contradiction(place.run("check", "--set=row_spec=legacy"), text)  # the layout is that of the tables
    copy = ("copy", "--from", "opentsdb", "--to", "heroic", "--start", "2026-11-21", "--to-set=salt_width=1")
    contradiction(place.run(*copy), "--to-set salt_width: layout heroic has no such setting")


def test_copy_compares_both_layouts(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb").code == 0
    assert place.run("tables", "create", "--layout", "kairosdb", "--set=row_spec=milliseconds").code == 0
    line = ("copy", "--from", "opentsdb", "--to", "kairosdb", "--start", "2026-11-21", "--verify-only")
    to = ("--to-table-prefix", place.prefix)
    contradiction(
        place.run(*line, *to, "--to-set=row_spec=legacy"),
        "--to-set row_spec says row_spec legacy",
        "milliseconds",
    )
    assert place.run(*line, *to).code == 0


def test_the_profile_is_named_where_it_contradicts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb").code == 0
    monkeypatch.chdir(place.folder)
    Path("timebeam.toml").write_text("[profiles.p]\nsalt_width = 1\n")
    contradiction(place.run("check", "--profile", "p"), "profile p of timebeam.toml says salt_width 1")


def test_tables_without_stored_settings_are_not_checked(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb").code == 0
    drop_table(place.target, place.table)
    assert place.ingest("--layout", "opentsdb").code == 0
    assert place.run("check", "--layout", "opentsdb", "--set=salt_width=1").code == 1
    ran = place.run("check")
    contradiction(ran, "the following arguments are required: --layout")


def test_settings_that_may_not_be_looked_for_are_not_passed_over_in_silence(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role on `tsdb*` alone: the emulator knows no permissions, so the answer is set here."""
    place.run("tables", "create", "--layout=opentsdb", "--set=salt_width=1")

    def denied(target: Target, table: str) -> bool:
        raise NoPermissionError(f"no permission on {target}: {table}")

    monkeypatch.setattr("timebeam.pipelines.options.use_settings.table_exists", denied)
    ran = place.run("check", "--layout=opentsdb", "--set=salt_width=1")
    assert (
        ran.code,
        f"warning: the options are not compared with the stored settings, table {place.table}" in ran.err,
    ) == (0, True)


def test_an_instance_that_does_not_answer_ends_the_command(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run("tables", "create", "--layout=opentsdb", "--set=salt_width=1")

    def away(target: Target, table: str) -> bool:
        raise BigtableError(f"{target} does not answer")

    monkeypatch.setattr("timebeam.pipelines.options.use_settings.table_exists", away)
    assert "does not answer" in place.run("check", "--layout=opentsdb").err


def test_create_stores_nothing_beside_rows_that_it_has_not_looked_at(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb", "--set=salt_width=1").code == 0
    assert place.ingest().code == 0
    drop_table(place.target, place.table)
    ran = place.run("tables", "create", "--layout", "opentsdb")
    assert ran.code == 0
    assert f"settings not stored: table {place.prefix}tsdb has rows" in ran.out
    assert place.rows() == {}


def test_adopt_stores_settings_that_the_rows_bear_out(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb", "--set=salt_width=1").code == 0
    assert place.ingest().code == 0
    drop_table(place.target, place.table)
    for wrong in (
        ("--set=salt_width=0",),
        ("--set=salt_width=1", "--set=salt_buckets=7"),
        ("--set=uid_width_tagk=4",),
    ):
        ran = place.run("tables", "adopt", "--layout", "opentsdb", *wrong)
        assert ran.code == 1, wrong
        assert "corruption: " in ran.out
        assert "these settings do not fit the rows; nothing was stored" in ran.err
        assert place.rows() == {}
    right = ("tables", "adopt", "--layout", "opentsdb", "--set=salt_width=1")
    assert "nothing was stored (dry run)" in place.run(*right, "--dry-run").out
    assert place.rows() == {}
    assert place.run(*right, "--rows", "1").code == 0
    assert place.rows() == {"opentsdb": OPENTSDB}


def test_adopt_replaces_settings_that_are_wrong(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "kairosdb").code == 0
    assert place.rows()["kairosdb"]["row_spec"] == "legacy"
    assert place.run("tables", "adopt", "--layout", "kairosdb", "--set=row_spec=milliseconds").code == 0
    assert place.rows()["kairosdb"]["row_spec"] == "milliseconds"


def test_the_zone_of_rollups_is_stored_with_the_first_rollup_tables(place: Place) -> None:
    config = str(place.folder / "rollups.json")
    Path(config).write_text((ROOT / "examples" / "rollups.json").read_text())
    create = ("tables", "create", "--layout", "opentsdb")
    assert place.run(*create, "--set=salt_width=1").code == 0
    assert place.run(*create, "--rollup-config", config, "--zone", "Europe/Berlin").code == 0
    assert place.rows() == {"opentsdb": OPENTSDB | {"zone": "Europe/Berlin"}}
    contradiction(
        place.run("rollup", "--rollup-config", config, "--zone", "UTC", "--day", "2026-11-20"),
        "--zone says zone UTC",
        "has Europe/Berlin here",
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            {"version": "2", "salt_width": "0"},
            "has version 2, which this version of timebeam does not support",
        ),
        (
            {"version": "1", "escaped": "true"},
            "has setting escaped, which this version of timebeam does not support",
        ),
        ({"version": "1", "salt_width": "x"}, "holds a corrupt setting: 'x' is not a whole number"),
    ],
)
def test_what_a_newer_timebeam_stored_is_rejected(place: Place, texts: dict[str, str], message: str) -> None:
    place.write("opentsdb", **texts)
    for line in (("check",), ("tables", "create")):
        ran = place.run(*line, "--layout", "opentsdb")
        assert ran.code == 1
        assert message in ran.err
        assert len(ran.err.splitlines()) == 1


def test_of_two_programs_that_create_at_once_one_stores_its_settings(place: Place) -> None:
    def create(salt_width: int) -> str:
        where = ("--project", place.target.project, "--instance", place.target.instance)
        words = (*where, "--table-prefix", place.prefix, "--salt-width", str(salt_width))
        described = place_of("tables", "create", "--layout", "opentsdb", *words)
        try:
            return " ".join(store_new(described, dry_run=False))
        except UsageError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        said = list(pool.map(create, [width % 2 for width in range(8)]))
    stored = place.rows()["opentsdb"]["salt_width"]
    for width, text in zip([width % 2 for width in range(8)], said, strict=True):
        if str(width) == stored:
            assert not text or "stored settings of layout opentsdb: salt_width" in text
        else:
            assert f"another program has just stored salt_width {stored}" in text
    assert any("stored settings" in text for text in said)
    assert "another program has just stored" in create(1 - int(stored))  # it does not replace them either


SENSOR = (ROOT / "examples" / "tables" / "sensor.toml").read_text()


def declare(place: Place, text: str) -> tuple[str, ...]:
    """The options of a declaration, in a file of its own."""
    path = place.folder / f"{len(list(place.folder.iterdir()))}.toml"
    path.write_text(text)
    return ("--layout", "table", "--tables", str(path))


def test_declared_tables_store_their_declaration(place: Place) -> None:
    """Without --layout and --tables the declaration is that of the tables."""
    ran = place.run("tables", "create", *declare(place, SENSOR))
    assert "stored settings of layout table: table SENSOR, table SENSOR_DAILY" in ran.out, ran
    columns = {"version": "1", "table SENSOR": SENSOR, "table SENSOR_DAILY": SENSOR}
    assert place.rows() == {"table": columns}
    records = place.folder / "records.jsonl"
    records.write_text('{"METER": 7, "TS": 1426490100000, "READING": 2}\n')
    letters = str(place.folder / "letters")
    assert place.run("ingest", "--format=records", f"--input={records}", "--dead-letters", letters).code == 0
    ran = place.run("query", "meter.reading", "--tag=METER=7", "--start=2015-03-01", "--output=json")
    assert (ran.code, '"1426490100":2' in ran.out.replace(" ", "")) == (0, True), ran
    assert place.run("check").code == 0
    assert "stored" not in place.run("tables", "create").out


@pytest.mark.parametrize(
    ("old", "new", "option"),
    [
        ("width = 10", "width = 12", "key"),
        ('tz = "America/Los_Angeles"', 'tz = "UTC"', "key"),
        ('step = "15m"', 'step = "1h"', "series"),
        ('separator = "#"', 'separator = "|"', "separator"),
        ('qualifier = "ID"', 'qualifier = "METER"', "column METER"),
        ('family = "METER"', 'family = "M"', "family"),
        ('identity = ["METER"]', 'identity = ["METER"]\ncell_time = "arrival"', "cell_time"),
    ],
)
def test_another_declaration_stops_a_command(place: Place, old: str, new: str, option: str) -> None:
    assert place.run("tables", "create", *declare(place, SENSOR)).code == 0
    changed = SENSOR.replace(old, new)
    for line in (("check",), ("tables", "create"), ("query", "SENSOR", "--full-scan")):
        ran = place.run(*line, *declare(place, changed))
        contradiction(ran, f"declares another {option} of table SENSOR than table {place.table} says")


def test_what_leaves_the_bytes_as_they_are_is_no_contradiction(place: Place) -> None:
    """Reads, points and new columns; `tables create` stores the new text.

    A row has one PLACE for all readings of its day: the declaration has to allow that records overwrite it.
    """
    assert place.run("tables", "create", *declare(place, SENSOR)).code == 0
    grown = SENSOR.replace('metric = "meter.reading"', 'metric = "reading"')
    grown = grown.replace('qualifier = "ID" }]', 'qualifier = "ID" }, "PLACE"]')
    rejected = place.run("tables", "create", *declare(place, grown))
    assert (rejected.code, "a row has one column 'PLACE' for all TS" in rejected.err) == (2, True), rejected
    grown = grown.replace('identity = ["METER"]', 'identity = ["METER"]\nallow_overwrite = true', 1)
    assert grown.count("allow_overwrite") == 1
    flags = declare(place, grown)
    assert place.run("check", *flags).code == 0
    assert place.rows()["table"]["table SENSOR"] == SENSOR
    assert "stored settings of layout table" in place.run("tables", "create", *flags).out
    assert place.rows()["table"]["table SENSOR"] == grown


def test_two_declarations_of_one_prefix(place: Place) -> None:
    market = (ROOT / "examples" / "tables" / "market.toml").read_text()
    flags = declare(place, market)
    assert place.run("tables", "create", *flags).code == 0
    assert place.run("tables", "create", *declare(place, SENSOR)).code == 0
    assert {"table QUOTE", "table TRADE", "table SENSOR"} < place.rows()["table"].keys()
    contradiction(place.run("check"), "has several declarations of tables: give --tables FILE")
    assert place.run("check", *flags).code == 0


def test_adopt_takes_declared_tables_whose_rows_fit(place: Place) -> None:
    flags = declare(place, SENSOR)
    assert place.run("tables", "create", *flags).code == 0
    records = place.folder / "records.jsonl"
    records.write_text('{"METER": 7, "TS": 1426490100000, "READING": 2}\n')
    letters = str(place.folder / "letters")
    line = ("ingest", *flags, "--format=records", f"--input={records}", "--dead-letters", letters)
    assert place.run(*line).code == 0
    drop_table(place.target, place.table)
    ran = place.run("tables", "create", *flags)
    assert f"settings not stored: table {place.prefix}SENSOR has rows" in ran.out
    wrong = declare(place, SENSOR.replace("width = 10", "width = 12"))
    ran = place.run("tables", "adopt", *wrong)
    assert (ran.code, place.rows()) == (1, {})
    assert "do not fit the rows" in ran.err
    assert place.run("tables", "adopt", *flags).code == 0
    assert place.rows()["table"]["table SENSOR"] == SENSOR


def test_retention_classes_are_stored_and_can_be_added(place: Place) -> None:
    """A query without --retention reads the points of all classes."""
    create = ("tables", "create", "--layout", "kairosdb")
    assert place.run(*create, "--set=retention=7,90").code == 0
    assert place.rows()["kairosdb"]["retention"] == "7,90"
    path = place.folder / "points.txt"
    path.write_text(POINTS)
    letters = ("--dead-letters", str(place.folder / "letters"))
    line = ("ingest", "--format", "opentsdb-text", "--input", str(path), *letters)
    assert place.run(*line, "--retention-class", "90").code == 0
    ran = place.run("query", "sys.load", "--start", "2026-11-21")
    assert (ran.code, "50 points" in ran.out) == (0, True), ran
    contradiction(
        place.run("check", "--set=retention=7"), "--set retention says retention 7", "has 7,90 here"
    )
    assert place.run(*create, "--set=retention=7,90,365").code == 0
    assert place.rows()["kairosdb"]["retention"] == "7,90,365"


def test_adopt_says_what_rows_do_not_prove(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb", "--set=salt_width=1").code == 0
    adopt = ("tables", "adopt", "--layout", "opentsdb", "--set=salt_width=1")
    assert "there are no rows: all settings are taken from the options" in place.run(*adopt).out
    assert place.ingest().code == 0
    ran = place.run(*adopt)
    assert "rows do not prove cell_time arrival, use_max_value true: taken from the options" in ran.out
    assert "salt_width" not in ran.out.splitlines()[-1]


def test_the_first_ingest_fills_the_empty_table_that_terraform_makes(place: Place) -> None:
    assert place.run("tables", "create", "--layout", "opentsdb", "--set=salt_width=1").code == 0
    drop_table(place.target, place.table)
    line = ("--layout", "opentsdb", "--set=salt_width=1")
    assert place.ingest(*line, "--dry-run").code == 0
    assert list(create_tables(place.target, [settings_table(place.prefix)], dry_run=False))
    assert place.ingest(*line, "--dry-run").code == 0
    assert place.rows() == {}
    ran = place.ingest(*line)
    assert (ran.code, "stored settings of layout opentsdb: salt_width 1" in ran.err) == (0, True), ran
    assert place.rows() == {"opentsdb": OPENTSDB}
    assert "stored" not in place.ingest(*line).err
    contradiction(place.ingest("--layout", "opentsdb", "--set=salt_width=2"), "has 1 here")
