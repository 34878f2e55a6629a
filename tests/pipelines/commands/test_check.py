"""`timebeam check` finds what is corrupt, calls what is not a note, and is content with the rest."""

from __future__ import annotations

import re

import pytest

from tests.support.commands import ingest, timebeam
from tests.support.points import BASE_S, put_file, random_points
from tests.support.stored import Store
from timebeam.schema.core.point_fragments import Name

BASE = BASE_S.to_bytes(4, "big")


@pytest.fixture(scope="module")
def sound(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Tables with points in every packing, as ingests leave them; to be copied, not changed."""
    store = Store.create(bigtable, "check_")
    folder = tmp_path_factory.mktemp("check")
    for number, packing in enumerate(("compacted", "points", "append")):
        file = put_file(folder / "a.txt", random_points(40, seed=number))
        flags = ["--format=opentsdb-text", "--auto-create-metrics", f"--packing={packing}"]
        ingest(folder, *store.flags, *flags, "--input", file)
    return store


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str, sound: Store) -> Store:
    """A copy of the sound tables, to be corrupt."""
    store = Store.create(bigtable, prefix)
    store.copy(sound)
    return store


def check(store: Store, *flags: str) -> tuple[int, list[tuple[str, str, str]], str]:
    """(exit code, (severity, table, row and text) of each finding, last line)."""
    ran = timebeam("check", *store.flags, *flags)
    assert ran.err == ""
    *lines, last = ran.out.splitlines()
    findings = []
    for line in lines:
        match = re.fullmatch(
            rf"(corruption|note): {store.layout.options.table_prefix}(tsdb|tsdb-uid) row (.*)", line
        )
        assert match, line
        findings.append((match[1], match[2], match[3]))
    return ran.code, findings, last


def only(store: Store) -> tuple[str, str, str]:
    """The one finding there is; the exit code is 1 if it is corruption, else 0."""
    code, findings, last = check(store)
    (finding,) = findings
    assert code == (1 if finding[0] == "corruption" else 0)
    counts = (1, 0) if finding[0] == "corruption" else (0, 1)
    assert last.endswith("corrupt: {}; notes: {}".format(*counts))
    return finding


def sound_key(store: Store, host: bytes | None = None) -> bytes:
    """The key of a new row of an hour without points: its UIDs are known, or that of the host is given."""
    uids = store.uids()
    hour = (BASE_S + 7200 * 10).to_bytes(4, "big")
    tag = uids[Name("tagk", "host")] + (host or uids[Name("tagv", "a")])
    return uids[Name("metrics", "sys.cpu")] + hour + tag


def test_sound_tables(store: Store) -> None:
    code, findings, last = check(store)
    assert (code, findings) == (0, [])
    rows, prefix = len(store.rows()), store.layout.options.table_prefix
    uid_rows = len({key for key, *_ in store.uid_cells()})
    assert last == (
        f"rows read: {uid_rows} of {prefix}tsdb-uid, {rows} of {prefix}tsdb; corrupt: 0; notes: 0"
    )


def test_empty_tables(bigtable: tuple[str, str], prefix: str) -> None:
    code, findings, last = check(Store.create(bigtable, prefix))
    assert (code, findings) == (0, [])
    assert last.endswith("corrupt: 0; notes: 0")


@pytest.mark.parametrize(
    ("qualifier", "value", "text"),
    [
        (b"\x00\x00\x00\x13", b"\1\2\3", "Corrupted value: 3 bytes where the qualifiers say 5 or one more"),
        (b"\x00\x00\x00\x13", b"\1\2\3\4\5\0\0", "Corrupted value: 7 bytes"),
        (b"\xf0\x00\x00\x43", b"\1\2", "2 bytes where the qualifier says 4"),
        (b"\x05\x00\x00", b"\x00\x03\1\2", "append column of 4 bytes ends inside an element"),
        (b"\x00\x00\x00\x12", b"\1\2\3\4\0", "values with flags 2"),
        (b"\x00\x0b", b"\1\2\3\4\5\6\7\x08", "Corrupted floating point value"),
        (b"\x09\x00\x00", b"\1", "no column has 3 bytes of qualifier that start so"),
        (b"\x00\x10\xf0\x00", b"\1\2\0", "cut in half"),
        (b"", b"\1", "empty qualifier"),
    ],
)
def test_columns_that_do_not_decode(store: Store, qualifier: bytes, value: bytes, text: str) -> None:
    key = sound_key(store)
    store.set_cell(store.layout.data_table, key, "t", qualifier, value)
    severity, table, found = only(store)
    assert (severity, table) == ("corruption", "tsdb")
    assert found.startswith(f"{key.hex()}: ")
    assert text in found


def test_what_is_no_point_is_no_corruption(store: Store) -> None:
    """Annotations, histograms, global annotations, UIDs' metadata."""
    data, key = store.layout.data_table, sound_key(store)
    start = int.from_bytes(key[3:7], "big")
    series = f'"tsuid":"{key[:3].hex()}{key[7:].hex()}"'
    store.set_cell(data, key, "t", b"\x01\x00\x00", f'{{{series},"startTime":{start}}}'.encode())
    store.set_cell(data, key, "t", b"\x01\x00\x00\x00\x05", f'{{"startTime":{start}005,{series}}}'.encode())
    store.set_cell(data, key, "t", b"\x06\x00\x00", b"histogram")
    store.set_cell(data, b"\0\0\0" + BASE, "t", b"\x01\x00\x00", f'{{"startTime":{BASE_S}}}'.encode())
    store.set_uid("metric_meta", "name", b"\0\0\1", b"{}")
    code, found, _ = check(store)
    assert code == 0
    assert found == [("note", "tsdb", f"{key.hex()}: the first of 1 rows with histograms: 1 of codec 104")]


@pytest.mark.parametrize("surplus", [b"\1", b"\0\0\1", b"\0\0\1\0\0"])
def test_keys_of_no_length(store: Store, surplus: bytes) -> None:
    key = sound_key(store) + surplus
    store.set_cell(store.layout.data_table, key, "t", b"\0\0", b"\1")
    severity, table, found = only(store)
    assert (severity, table) == ("corruption", "tsdb")
    assert f"{len(key)} bytes is not salt, metric, base time and tag pairs" in found


def test_unknown_uids_in_keys(store: Store) -> None:
    key = sound_key(store, b"\0\x99\x99")
    store.set_cell(store.layout.data_table, key, "t", b"\0\0", b"\1")
    assert only(store) == ("corruption", "tsdb", f"{key.hex()}: UID 009999 of kind tagv has no name")


def test_base_times_that_are_no_hour(store: Store) -> None:
    key = sound_key(store)
    key = key[:3] + (BASE_S + 7).to_bytes(4, "big") + key[7:]
    store.set_cell(store.layout.data_table, key, "t", b"\0\0", b"\1")
    assert only(store) == ("corruption", "tsdb", f"{key.hex()}: base time {BASE_S + 7} is not a whole hour")


def test_a_lost_reverse_mapping(store: Store) -> None:
    """Of a name that no row uses; else each of its rows would be listed too."""
    store.set_uid("tagk", "id", b"rack", b"\0\0\x77")
    assert only(store) == ("corruption", "tsdb-uid", "'rack': tagk: UID 000077 has no reverse mapping")


def test_two_names_with_one_uid(store: Store) -> None:
    uid = store.uids()[Name("tagk", "host")]
    store.set_uid("tagk", "id", b"rack", uid)
    text = f"'rack': tagk: UID {uid.hex()} is mapped back to 'host'"
    assert only(store) == ("corruption", "tsdb-uid", text)


def test_uids_of_another_width(store: Store) -> None:
    store.set_uid("tagk", "id", b"rack", b"\0\0\0\x07")
    assert only(store) == ("corruption", "tsdb-uid", "'rack': tagk: UID 00000007 is not 3 bytes")


def test_a_counter_of_another_size(store: Store) -> None:
    store.remove_row(store.layout.options.uid_table, b"\0")
    store.set_uid("tagk", "id", b"\0", b"\0\0\0\x07")
    severity, table, found = only(store)
    assert (severity, table) == ("corruption", "tsdb-uid")
    assert found.endswith("tagk: counter of 4 bytes instead of 8")


def test_interrupted_assignments_are_noted(store: Store) -> None:
    store.set_uid("tagk", "name", b"\0\0\x77", b"rack")
    severity, table, found = only(store)
    assert (severity, table) == ("note", "tsdb-uid")
    assert "'rack' lacks its forward mapping" in found


@pytest.mark.parametrize(("used", "severity"), [(204, None), (205, "note"), (255, "note"), (300, "note")])
def test_kinds_that_run_full(bigtable: tuple[str, str], prefix: str, used: int, severity: str | None) -> None:
    store = Store.create(bigtable, prefix, uid_width_tagv=1)
    store.set_counter("tagv", used)
    _, findings, _ = check(store)
    assert [finding[0] for finding in findings] == ([severity] if severity else [])


def test_findings_beyond_the_most_are_counted(store: Store) -> None:
    for number in range(7):
        store.set_cell(store.layout.data_table, b"bad%d" % number, "t", b"\0\0", b"\1")
    ran = timebeam("check", *store.flags, "--most=3")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert len(lines) == 3 + 1 + 1
    assert lines[3] == "and 4 more (--most lists more)"
    assert lines[4].endswith("corrupt: 7; notes: 0")


def test_missing_tables_are_named(bigtable: tuple[str, str], prefix: str) -> None:
    project, instance = bigtable
    place = [f"--project={project}", f"--instance={instance}", f"--table-prefix={prefix}"]
    ran = timebeam("check", "--layout=opentsdb", *place)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1)
    assert f"timebeam tables create --layout opentsdb --table-prefix {prefix}" in ran.err
