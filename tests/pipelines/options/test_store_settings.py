"""Settings are stored once their tables are there, and none that contradict what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Bigtable
from tests.support.place import OPENTSDB, Place, contradiction
from timebeam.pipelines.options import store_settings
from timebeam.transforms.bigtable.create_tables import drop_table
from timebeam.transforms.bigtable.target import BigtableError

ROOT = Path(__file__).resolve().parents[3]
CREATE, ADOPT, FORGET = ("tables", "create"), ("tables", "adopt"), ("tables", "forget")
QUERY = ("query", "sys.load", "--start", "2026-11-21")
CREATED = {name: text for name, text in OPENTSDB.items() if name != "salt_width"} | {"salt_width": "0"}


@pytest.fixture
def place(bigtable: Bigtable, prefix: str, tmp_path: Path) -> Place:
    return Place(bigtable, prefix, tmp_path)


def archive_points(place: Place, layout: str) -> None:
    """Fills tables of a layout, and moves all points into the archive."""
    assert place.run(*CREATE, "--layout", layout, "--set=archive=true").code == 0
    assert place.ingest("--layout", layout, hours_ago=2).code == 0
    everything = ("--older-than", "1h", "--quiet-hours", "0", "--reader-hours", "0", "--delete-source")
    ran = place.run("archive", "--layout", layout, *everything)
    assert (ran.code, "rows deleted               1" in ran.out) == (0, True), ran


def is_whole(place: Place, *options: str) -> bool:
    """Whether a query finds all points."""
    ran = place.run(*QUERY, *options)
    return (ran.code, "50 points" in ran.out) == (0, True)


def test_an_ingest_without_its_tables_stores_nothing(place: Place) -> None:
    assert place.run(*CREATE, "--layout", "opentsdb").code == 0
    ran = place.ingest("--layout", "kairosdb")
    assert (ran.code, f"missing in {place.target}: table {place.prefix}data_points" in ran.err) == (1, True)
    assert place.rows() == {"opentsdb": CREATED}
    assert place.run("check").code == 0


def test_an_ingest_that_cannot_begin_stores_nothing(place: Place) -> None:
    assert place.run(*CREATE, "--layout", "opentsdb").code == 0
    assert place.run(*FORGET, "--layout", "opentsdb").code == 0
    ran = place.ingest("--layout", "opentsdb", letters=str(place.folder / "points.txt" / "letters"))
    assert (ran.code, "cannot create files there" in ran.err) == (2, True), ran
    line = ("ingest", "--layout", "opentsdb", "--format", "opentsdb-text", "--input")
    assert place.run(*line, str(place.folder / "no-such-file")).code == 1
    assert place.rows() == {}
    assert place.ingest("--layout", "opentsdb").code == 0
    assert place.rows() == {"opentsdb": CREATED}


@pytest.mark.parametrize("command", ["ingest", "replay", "copy"])
def test_that_names_are_escaped_is_not_stored_without_the_tables(place: Place, command: str) -> None:
    assert place.run(*CREATE, "--layout", "opentsdb").code == 0
    assert place.ingest("--set=names=replace").code == 0
    letters = place.folder / "old-letters.jsonl"
    letters.write_text("")
    new = Place(Bigtable(place.target.project, place.target.instance), f"new_{place.prefix}", place.folder)
    escape = ("--layout", "opentsdb", "--set=names=escape", "--format", "opentsdb-text")
    line = {
        "ingest": ("ingest", *escape, "--input", str(place.folder / "points.txt")),
        "replay": ("replay", str(letters), *escape),
    }
    if command == "copy":
        to = ("--to-table-prefix", new.prefix, "--to-set=names=escape")
        ran = place.run("copy", "--from=opentsdb", "--to=opentsdb", *to, "--start=2026-11-21")
    else:
        ran = new.run(*line[command], "--dead-letters", str(place.folder / "letters"))
    assert (ran.code, "missing in" in ran.err) == (1, True), ran
    assert new.rows() == {}


def test_a_create_that_fails_stores_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*arguments: object, dry_run: bool) -> Iterator[str]:
        yield from ()
        raise BigtableError("no permission to create tables")

    with monkeypatch.context() as patch:
        patch.setattr("timebeam.transforms.bigtable.create_tables.create_tables", denied)
        ran = place.run(*CREATE, "--layout", "kairosdb")
    assert (ran.code, "no permission" in ran.err) == (1, True), ran
    assert place.rows() == {}
    assert place.run(*CREATE, "--layout", "kairosdb", "--set=row_spec=milliseconds").code == 0
    assert place.rows()["kairosdb"]["row_spec"] == "milliseconds"


def test_what_a_failed_command_of_an_older_version_stored_is_forgotten(place: Place) -> None:
    """Neither `create` nor `adopt` could correct it, and all commands needed --layout."""
    assert place.run(*CREATE, "--layout", "opentsdb").code == 0
    place.write("kairosdb", version="1", row_spec="legacy")
    contradiction(place.run("check"), "has settings of kairosdb, opentsdb: give --layout", "tables forget")
    kairosdb = ("--layout", "kairosdb", "--set=row_spec=milliseconds")
    contradiction(place.run(*CREATE, *kairosdb), "says row_spec milliseconds", "`timebeam tables forget`")
    ran = place.run(*ADOPT, *kairosdb)
    assert (ran.code, "missing in" in ran.err, "tables forget --layout kairosdb" in ran.err) == (
        1,
        True,
        True,
    )
    forget = (*FORGET, "--layout", "kairosdb")
    ran = place.run(*forget, "--dry-run")
    assert (ran.code, "would forget settings of layout kairosdb: row_spec legacy" in ran.out) == (0, True)
    assert "kairosdb" in place.rows()
    ran = place.run(*forget)
    assert ran.out.splitlines() == [
        "forgot settings of layout kairosdb: row_spec legacy",
        f"to store them again: timebeam tables create --layout kairosdb --table-prefix {place.prefix}",
    ]
    assert place.rows() == {"opentsdb": CREATED}
    assert place.run("check").code == 0
    ran = place.run(*forget)
    assert (ran.code, ran.out) == (0, f"table {place.table} has no settings of layout kairosdb\n")
    assert place.run(*CREATE, *kairosdb).code == 0


def test_forget_names_the_command_that_stores_settings_again(place: Place) -> None:
    assert place.run(*CREATE, "--layout", "opentsdb", "--set=salt_width=1").code == 0
    assert place.ingest().code == 0
    contradiction(place.run(*FORGET), "forget needs the layout of the tables: --layout")
    again = place.run(*FORGET, "--layout", "opentsdb").out.splitlines()[1]
    assert place.rows() == {}
    command = again.partition("timebeam ")[2].split()
    assert command[:4] == [*ADOPT, "--layout", "opentsdb"]
    assert place.run(*command).code == 0
    assert place.rows() == {"opentsdb": OPENTSDB}


def test_a_corrupt_setting_can_be_forgotten_but_not_a_newer_one(place: Place) -> None:
    place.write("opentsdb", version="1", salt_width="x")
    assert place.run(*FORGET, "--layout", "opentsdb").code == 0
    assert place.rows() == {}
    place.write("opentsdb", version="1", escaped="true")
    ran = place.run(*FORGET, "--layout", "opentsdb")
    assert (ran.code, "setting escaped, which this version of timebeam does not support" in ran.err) == (
        1,
        True,
    )
    assert "opentsdb" in place.rows()


def test_forget_of_one_declared_table(place: Place) -> None:
    text = (ROOT / "examples" / "tables" / "sensor.toml").read_text()
    place.write("table", **{"version": "1", "table SENSOR": text, "table SENSOR_DAILY": text})
    forget = (*FORGET, "--layout", "table", "--table", f"{place.prefix}SENSOR_DAILY")
    ran = place.run(*forget)
    assert (ran.code, "settings of layout table: table SENSOR_DAILY" in ran.out) == (0, True), ran
    assert text in ran.out  # which only the table had
    assert place.rows() == {"table": {"version": "1", "table SENSOR": text}}
    assert "has no settings" in place.run(*forget).out
    assert place.run(*FORGET, "--layout", "table").code == 0
    assert place.rows() == {}


@pytest.mark.parametrize("layout", ["opentsdb", "heroic", "heroic-readable", "kairosdb"])
def test_points_of_an_archive_are_not_hidden(place: Place, layout: str) -> None:
    archive_points(place, layout)
    stored = place.rows()
    ran = place.run(*ADOPT, "--layout", layout, "--set=archive=false")
    assert (ran.code, f"corruption: {place.prefix}archive row" in ran.out) == (1, True), ran
    assert "give --set archive=true" in ran.out
    assert "nothing was stored" in ran.err
    contradiction(place.run(*FORGET, "--layout", layout), f"table {place.prefix}archive has rows")
    assert place.run(*ADOPT, "--layout", layout).code == 0  # what is not given stays
    assert (place.rows(), is_whole(place)) == (stored, True)
    drop_table(place.target, place.table)
    ran = place.run(*CREATE, "--layout", layout)
    assert "settings not stored: table" in ran.out
    ran = place.run(*ADOPT, "--layout", layout)
    assert (ran.code, place.rows()) == (1, {})
    assert place.run("check", "--layout", layout).code == 1
    assert place.run(*ADOPT, "--layout", layout, "--set=archive=true").code == 0
    assert (place.rows(), is_whole(place)) == (stored, True)


def test_an_archive_that_earlier_versions_hid_is_found_and_taken_back(place: Place) -> None:
    archive_points(place, "opentsdb")
    place.write("opentsdb", archive="false")
    ran = place.run("check")
    assert (ran.code, f"corruption: {place.prefix}archive row" in ran.out) == (1, True), ran
    assert place.run(*ADOPT, "--layout", "opentsdb", "--set=archive=true").code == 0
    assert (place.run("check").code, is_whole(place)) == (0, True)


def test_adopt_keeps_what_is_not_given(place: Place) -> None:
    """Rows do not prove it; the zone is that of rollup tables, which adopt does not look at."""
    kept = {"cell_time": "arrival", "use_max_value": "false", "marked_since": "2026-11-20", "zone": "UTC"}
    assert place.run(*CREATE, "--layout", "opentsdb").code == 0
    place.write("opentsdb", **kept)
    assert place.run(*ADOPT, "--layout", "opentsdb", "--set=archive=true").code == 1  # there is no table
    assert place.run(*ADOPT, "--layout", "opentsdb", "--set=use_max_value=true").code == 0
    assert place.rows() == {"opentsdb": CREATED | kept | {"use_max_value": "true"}}


def test_adopt_does_not_take_the_archive_of_another_layout(place: Place) -> None:
    archive_points(place, "heroic")
    assert place.run(*CREATE, "--layout", "opentsdb").code == 0
    ran = place.run(*ADOPT, "--layout", "opentsdb", "--set=archive=true")
    contradiction(ran, f"table {place.prefix}archive is that of layout heroic")
    assert place.run("check", "--layout", "opentsdb").code == 0  # the rows are those of heroic
    assert place.run(*ADOPT, "--layout", "opentsdb", "--set=archive=false").code == 0
    assert place.rows()["opentsdb"] == CREATED | {"archive": "false"}
    assert is_whole(place, "--layout", "heroic")


def test_of_two_layouts_with_one_archive_the_one_without_rows_leaves_it(place: Place) -> None:
    """As two programs of an older version could store it."""
    archive_points(place, "heroic")
    assert place.run(*CREATE, "--layout", "opentsdb").code == 0
    place.write("opentsdb", archive="true")
    for layout in ("heroic", "opentsdb"):
        contradiction(place.run("check", "--layout", layout), "is that of layout", "tables adopt")
    assert place.run(*ADOPT, "--layout", "heroic", "--set=archive=false").code == 1
    assert place.rows()["heroic"]["archive"] == "true"
    assert place.run(*ADOPT, "--layout", "opentsdb", "--set=archive=false").code == 0
    assert is_whole(place, "--layout", "heroic")
    assert place.run("check", "--layout", "opentsdb").code == 0


HEROIC = ("heroic", "heroic-readable")


@pytest.mark.parametrize(("first", "second"), [HEROIC, HEROIC[::-1]])
def test_two_layouts_do_not_share_a_table(place: Place, first: str, second: str) -> None:
    assert place.run(*CREATE, "--layout", first).code == 0
    stored = place.rows()
    text = f"table {place.prefix}metrics is that of layout {first}"
    for action in (CREATE, ADOPT, ("check",), ("series", "*")):
        contradiction(place.run(*action, "--layout", second), text, "(--table-prefix)", "tables forget")
    contradiction(place.ingest("--layout", second), text)
    copy = ("copy", "--from", second, "--to", "kairosdb", "--to-table-prefix", "x_", "--start", "2026-11-21")
    contradiction(place.run(*copy), text)
    assert place.rows() == stored
    assert place.ingest().code == 0
    assert (is_whole(place), place.run("check").code) == (True, 0)


def test_of_two_layouts_that_an_older_version_stored_for_one_table_one_is_forgotten(place: Place) -> None:
    assert place.run(*CREATE, "--layout", "heroic").code == 0
    assert place.ingest().code == 0
    place.write("heroic-readable", version="1", resource_names="false")
    for layout, other in (HEROIC, HEROIC[::-1]):
        text = f"table {place.prefix}metrics is that of layout {other}"
        contradiction(place.run("check", "--layout", layout), text, f"tables forget --layout {other}")
        contradiction(place.ingest("--layout", layout), text)
    assert place.run(*FORGET, "--layout", "heroic-readable").code == 0
    assert (is_whole(place), place.run("check").code) == (True, 0)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("tsdb", "is that of layout opentsdb"),
        ("archive", "is that of layout opentsdb"),
        ("timebeam", "holds the stored settings"),
    ],
)
def test_a_declared_table_is_not_that_of_a_layout_or_of_the_settings(
    place: Place, table: str, why: str
) -> None:
    assert place.run(*CREATE, "--layout", "opentsdb", "--set=archive=true").code == 0
    market = (ROOT / "examples" / "tables" / "market.toml").read_text()
    path = place.folder / "market.toml"
    path.write_text(market.replace('table = "QUOTE"', f'table = "{table}"'))
    declared = ("--layout", "table", "--tables", str(path))
    for action in (CREATE, ADOPT):
        ran = place.run(*action, *declared)
        contradiction(ran, f"table {place.prefix}{table} {why}", "(--table-prefix)")
    assert list(place.rows()) == ["opentsdb"]
    path.write_text(market)
    assert place.run(*CREATE, *declared).code == 0
    assert set(place.rows()) == {"opentsdb", "table"}


@pytest.mark.parametrize(("first", "second"), [HEROIC, HEROIC[::-1]])
@pytest.mark.parametrize("action", [CREATE, ADOPT])
def test_of_two_programs_at_once_not_both_store_layouts_of_one_table(
    place: Place, monkeypatch: pytest.MonkeyPatch, action: tuple[str, str], first: str, second: str
) -> None:
    """The later one looked at the settings before the other one stored its own."""
    assert place.run(*CREATE, "--layout", second).code == 0
    assert place.run(*FORGET, "--layout", second).code == 0
    write = {CREATE: "create_cells", ADOPT: "mutate_rows"}[action]
    really = getattr(store_settings, write)

    def written_later(*arguments: Any) -> Any:
        monkeypatch.undo()
        assert place.run(*CREATE, "--layout", first).code == 0
        return really(*arguments)

    monkeypatch.setattr(store_settings, write, written_later)
    ran = place.run(*action, "--layout", second)
    text = f"another program has just stored settings: table {place.prefix}metrics is that of layout {first}"
    assert (ran.code, text in ran.err) == (2, True), ran
    assert list(place.rows()) == [first]
    assert place.run("check").code == 0
