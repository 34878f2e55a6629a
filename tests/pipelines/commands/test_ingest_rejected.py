"""Rejected input: each bad piece is a dead letter with its bytes, place and reason; the rest is stored."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.commands import Ingested, ingest, timebeam
from tests.support.model import content
from tests.support.points import BASE_S, json_line, put, put_file, random_points, stored, write_file
from tests.support.stored import Store
from timebeam.transforms.dead_letters.letter import from_json

GOOD = random_points(120)


class Bad(NamedTuple):
    """A record without its newline, the reason why it is rejected, and the stage that does so."""

    record: bytes
    reason: str
    stage: str = "parse"


def json_record(
    metric: str = '"m"', time: str = "1356998400", value: str = "1", tags: str = '{"host":"a"}'
) -> bytes:
    return f'{{"metric":{metric},"timestamp":{time},"value":{value},"tags":{tags}}}'.encode()


BAD_JSON = [
    Bad(b'{"metric":"m","timestamp":1356998400,', "bad-syntax"),
    Bad(b"put m 1356998400 1 host=a", "bad-syntax"),
    Bad(b"17", "bad-syntax"),
    Bad(json_record(value="NaN"), "bad-number"),
    Bad(json_record(value="Infinity"), "bad-number"),
    Bad(json_record(value="-Infinity"), "bad-number"),
    Bad(json_record(value='"NaN"'), "bad-number"),
    Bad(json_record(value="true"), "bad-number"),
    Bad(json_record(value="1e999"), "number-out-of-range"),
    Bad(json_record(value="12345678901234567890"), "number-out-of-range"),
    Bad(json_record(value="-9223372036854775809"), "number-out-of-range"),
    Bad(json_record(value='""'), "empty-value"),
    Bad(json_record(value="null"), "empty-value"),
    Bad(json_record(metric='""'), "bad-metric"),
    Bad(json_record(metric="5"), "bad-metric"),
    Bad(json_record(metric='"sys cpu"'), "bad-metric", "assign"),
    Bad(json_record(metric='"sys:cpu"'), "bad-metric", "assign"),
    Bad(json_record(tags='{"host":""}'), "bad-tag", "assign"),
    Bad(json_record(tags='{"":"a"}'), "bad-tag", "assign"),
    Bad(json_record(tags='{"host":"a#b"}'), "bad-tag", "assign"),
    Bad(json_record(tags='{"host":["a"]}'), "bad-tag"),
    Bad(json_record(metric='"東京"'), "name-not-storable", "assign"),
    Bad(json_record(tags='{"host":"Ω"}'), "name-not-storable", "assign"),
    Bad(json_record(tags=json.dumps({f"k{n}": "v" for n in range(31)})), "too-many-tags", "assign"),
    Bad(json_record(tags="{}"), "no-tags"),
    Bad(b'{"metric":"m","timestamp":1356998400,"value":1}', "no-tags"),
    Bad(json_record(tags='{"host":"a","host":"b"}'), "duplicate-tag"),
    Bad(json_record(time="-5"), "bad-timestamp"),
    Bad(json_record(time="0"), "bad-timestamp"),
    Bad(json_record(time='"now"'), "bad-timestamp"),
    Bad(json_record(time="1356998400.5"), "bad-timestamp"),
    Bad(json_record(time="4294967296000"), "timestamp-out-of-range"),
    Bad(json_record(time="99999999999999"), "timestamp-out-of-range"),
    Bad(json_record(time="12345678901234567890"), "timestamp-out-of-range"),
    Bad(b'{"metric":"m\xff","timestamp":1356998400,"value":1,"tags":{"host":"a"}}', "bad-encoding"),
]

BAD_TEXT = [
    Bad(b"put m", "bad-syntax"),
    Bad(b"version", "bad-syntax"),
    Bad(b"put m 1356998400 1", "no-tags"),
    Bad(b"put  1356998400 1 host=a", "bad-metric"),
    Bad(b"put m 1356998400 nan host=a", "bad-number"),
    Bad(b"put m 1356998400 Infinity host=a", "bad-number"),
    Bad(b"put m 1356998400 1_000 host=a", "bad-number"),
    Bad(b"put m 1356998400 1e400 host=a", "number-out-of-range"),
    Bad(b"put m 1356998400 12345678901234567890 host=a", "number-out-of-range"),
    Bad(b"put m 1356998400  host=a", "empty-value"),
    Bad(b"put m\xc2\xa7 1356998400 1 host=a", "bad-metric", "assign"),
    Bad(b"put m 1356998400 1 host", "bad-tag"),
    Bad(b"put m 1356998400 1 host=", "bad-tag"),
    Bad(b"put m 1356998400 1 host=a=b", "bad-tag"),
    Bad(b"put m 1356998400 1 host=a host=b", "duplicate-tag"),
    Bad("put m 1356998400 1 host=Ωmega".encode(), "name-not-storable", "assign"),
    Bad(b"put m 1356998400 1 " + b" ".join(b"k%d=v" % n for n in range(31)), "too-many-tags", "assign"),
    Bad(b"put m -5 1 host=a", "bad-timestamp"),
    Bad(b"put m 0 1 host=a", "bad-timestamp"),
    Bad(b"put m 1356998400.12 1 host=a", "bad-timestamp"),
    Bad(b"put m 99999999999999 1 host=a", "timestamp-out-of-range"),
    Bad(b"put m\xfe 1356998400 1 host=a", "bad-encoding"),
]

FORMS: dict[str, Any] = {"opentsdb-json": (json_line, BAD_JSON), "opentsdb-text": (put, BAD_TEXT)}


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def letters_of(found: Ingested) -> set[tuple[str, int, bytes, str, str]]:
    """(file, offset, payload, reason, stage) of every dead letter; there are no two the same."""
    letters = [
        (
            letter["source"],
            letter["offset"],
            from_json(json.dumps(letter)).rejected.payload,
            letter["reason"],
            letter["stage"],
        )
        for letter in found.letters
    ]
    assert len(set(letters)) == len(letters)
    assert all(letter["message"] and letter["time_ms"] > 0 for letter in found.letters)
    return set(letters)


def check_sums(found: Ingested) -> None:
    """Asserts that every record met in the input is accounted for."""
    summary = found.summary
    rejected = sum(summary["rejected"].values())
    assert rejected == len(found.letters)
    assert summary["points_read"] == summary["points_stored"] + summary["points_duplicate"] + rejected


@pytest.mark.parametrize("form", FORMS)
def test_bad_records_among_good_ones(store: Store, tmp_path: Path, form: str) -> None:
    """In a plain file and in a compressed one with Windows' line ends; offsets count decompressed bytes."""
    line, bad = FORMS[form]
    chance = random.Random(form)
    expected, texts = set(), {}
    for name, end, points in (("a.txt", b"\n", GOOD[:60]), ("b.txt.gz", b"\r\n", GOOD[60:])):
        records = [(line(point).rstrip(b"\n"), None) for point in points] + [(one.record, one) for one in bad]
        chance.shuffle(records)
        records.insert(3, (b"   ", None))
        path, text = tmp_path / name, b""
        for record, one in records:
            if one is not None:
                expected.add((str(path), len(text), record, one.reason, one.stage))
            text += record + end
        texts[str(write_file(path, [text]))] = text
    found = ingest(tmp_path, *store.flags, "--auto-create-metrics", "--format", form, "--input", *texts)
    letters = letters_of(found)
    assert {(source, at, raw.rstrip(b"\r"), *why) for source, at, raw, *why in letters} == expected
    assert all(texts[source].startswith(raw, at) for source, at, raw, *_ in letters)
    assert stored(store) == content(GOOD)
    check_sums(found)
    assert found.summary["points_stored"] == len(GOOD)


def test_elements_of_an_array_are_rejected_singly(store: Store, tmp_path: Path) -> None:
    elements = [json_record(metric='"größe"'), json_record(value="NaN"), json_record(time="1356998401")]
    line = b"[%s, %s ,%s]\n" % tuple(elements)
    file = write_file(tmp_path / "a.json", [line, line.replace(b"6998", b"7998")])
    found = ingest(tmp_path, *store.flags, "--auto-create-metrics", "--format=opentsdb-json", "--input", file)
    bad = [line.index(elements[1]), len(line) + line.index(elements[1])]
    assert {(offset, raw) for _, offset, raw, _, _ in letters_of(found)} == {
        (bad[0], elements[1]),
        (bad[1], elements[1].replace(b"6998", b"7998")),
    }
    check_sums(found)
    assert found.summary["points_stored"] == 4


def test_unknown_metrics_without_auto_create(store: Store, tmp_path: Path) -> None:
    known = [point for point in GOOD if point.series[0] == "sys.cpu"]
    unknown = [point for point in GOOD if point.series[0] != "sys.cpu"]
    create = put_file(tmp_path / "a.txt", known[:1])
    ingest(tmp_path, *store.flags, "--auto-create-metrics", "--format=opentsdb-text", "--input", create)
    file = put_file(tmp_path / "b.txt", GOOD)
    found = ingest(tmp_path, *store.flags, "--format=opentsdb-text", "--input", file)
    text = file.read_bytes()
    assert letters_of(found) == {
        (str(file), text.index(put(point)), put(point).rstrip(b"\n"), "unknown-name", "assign")
        for point in unknown
    }
    assert "--auto-create-metrics" in found.letters[0]["message"]
    assert stored(store) == content(known)
    assert store.counters()["metrics"] == 1
    check_sums(found)


def test_a_truncated_file(store: Store, tmp_path: Path) -> None:
    lines = b"".join(map(put, GOOD))
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress(lines)[:-200])
    found = ingest(tmp_path, *store.flags, "--auto-create-metrics", "--format=opentsdb-text", "--input", file)
    ((source, offset, raw, reason, stage),) = letters_of(found)
    assert (source, reason, stage) == (str(file), "truncated-file", "read")
    assert lines[:offset].endswith(b"\n")
    assert lines[offset:].startswith(raw)
    kept = GOOD[: lines[:offset].count(b"\n")]
    assert len(kept) > 20
    assert stored(store) == content(kept)
    check_sums(found)


def test_a_line_of_two_megabytes(store: Store, tmp_path: Path) -> None:
    first, last = put(GOOD[0]), put(GOOD[1])
    long = b"put m 1356998400 1 host=" + b"a" * (2 << 20)
    file = write_file(tmp_path / "a.txt", [first, long + b"\n", last])
    found = ingest(tmp_path, *store.flags, "--auto-create-metrics", "--format=opentsdb-text", "--input", file)
    assert letters_of(found) == {(str(file), len(first), long[: 1 << 20], "line-too-long", "read")}
    assert stored(store) == content(GOOD[:2])
    check_sums(found)


def test_bytes_that_are_no_text(store: Store, tmp_path: Path) -> None:
    """Payloads that are not UTF-8 stand in base64, so that not a bit is lost."""
    noise = [random.Random(seed).randbytes(200).replace(b"\n", b" ") for seed in range(20)]
    file = write_file(tmp_path / "a.txt", [*[line + b"\n" for line in noise], put(GOOD[0])])
    found = ingest(tmp_path, *store.flags, "--auto-create-metrics", "--format=opentsdb-text", "--input", file)
    assert {raw for _, _, raw, _, _ in letters_of(found)} == set(noise)
    assert set(found.summary["rejected"]) == {"bad-encoding"}
    assert stored(store) == content(GOOD[:1])
    check_sums(found)


def test_uids_that_run_out(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = Store.create(bigtable, prefix, uid_width_tagv=1)
    lines = [b"put m %d 1 host=h%03d\n" % (BASE_S, number) for number in range(300)]
    file = write_file(tmp_path / "a.txt", lines)
    found = ingest(tmp_path, *store.flags, "--auto-create-metrics", "--format=opentsdb-text", "--input", file)
    assert found.summary["rejected"] == {"uids-exhausted": 45}
    assert found.summary["uids_assigned"] == 255 + 2
    assert len(stored(store)) == 255
    assert {raw + b"\n" for _, _, raw, _, _ in letters_of(found)} <= set(lines)
    check_sums(found)


@pytest.mark.parametrize("modified", [0, -86_400])
def test_a_file_dated_before_1970_is_an_error_of_one_line(
    store: Store, tmp_path: Path, modified: int
) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes(b"put m 1356998400 5 host=a\n")
    os.utime(path, (modified, modified))
    ran = timebeam("ingest", *store.flags, "--format=opentsdb-text", f"--input={path}")
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1
    assert "modification time" in ran.err


def test_a_folder_as_input_is_an_error_of_one_line(store: Store, tmp_path: Path) -> None:
    ran = timebeam("ingest", *store.flags, "--format=opentsdb-text", f"--input={tmp_path}")
    assert ran.code == 1
    assert ran.err == f"timebeam ingest: {tmp_path} is a folder: name its files, as {tmp_path}/*\n"


def test_a_file_that_cannot_be_read_is_an_error_of_one_line(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may be allowed to read everything."""
    path = tmp_path / "secret.txt"
    path.write_bytes(b"put m 1356998400 5 host=a\n")
    monkeypatch.setattr(os, "access", lambda *_: False)
    ran = timebeam("ingest", *store.flags, "--format=opentsdb-text", f"--input={path}")
    assert ran.code == 1
    assert ran.err == f"timebeam ingest: {path} cannot be read: permission denied\n"


def test_a_file_of_another_format_fails_and_is_named(store: Store, tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.txt", [json_line(point) for point in random_points(50)])
    flags = (*store.flags, "--auto-create-metrics", "--dead-letters", tmp_path / "dead", "--input", file)
    ran = timebeam("ingest", *flags, "--format=opentsdb-text")
    assert ran.code == 1
    assert (
        ran.err == "nothing was stored: everything was rejected; the first "
        "dead letter looks like --format opentsdb-json\n"
    )
    assert timebeam("ingest", *flags, "--format=opentsdb-text", "--max-rejected=100%").code == 0
    assert timebeam("ingest", *flags, "--format=opentsdb-json").code == 0
