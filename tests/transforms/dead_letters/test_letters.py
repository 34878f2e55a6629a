"""Dead letters of anybody: each becomes input again or stays a letter with its bytes."""

from __future__ import annotations

import collections
import contextlib
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from apache_beam.pvalue import TaggedOutput
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.any_store import VARIANTS, AnyStore
from tests.support.budget import long_after
from tests.support.commands import ingest, timebeam
from tests.support.inputs.letters import Json, letter, payload_of, read_letters, row_payload, write_letters
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.formats import Message
from timebeam.transforms.dead_letters import replay
from timebeam.transforms.dead_letters.letter import from_json, letters
from timebeam.transforms.dead_letters.replay import POINTS, ROWS, _OpenFn, parsed_letters
from timebeam.transforms.flow.steps import REJECTED
from timebeam.transforms.read.table_reader import scan_table

T = 1_767_225_600
ODD = {
    "arrival_ms": ["1", None, 1 << 70, 1.5, True, []],
    "offset": ["1", None, 1 << 70],
    "attributes": [[], None, {"format": 5}, {"format": None}],
    "publish_time_ms": ["1", None, 1 << 70],
    "reason": ["nothing", 5, None],
    "stage": ["nothing", 5, None],
    "source": [5, None, []],
    "message": [5, None],
    "message_id": [5, []],
    "payload": [5, [], {}, "\ud800"],
    "payload_is_cut": ["yes", 1],
}
DEEP = b"[" * 100_000

Row = tuple[str, bytes, Sequence[tuple[str, bytes, int, bytes]]]
"""Table, key and cells."""

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=9)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
STAGES = st.sampled_from([stage.value for stage in Stage])
REASONS = st.sampled_from([reason.value for reason in Reason])


def odd_letters() -> Iterator[bytes]:
    """Lines that are letters but for one member."""
    whole = letter("put m 1 1 host=a", "parse", "bad-tag", message_id="1", publish_time_ms=1, attributes={})
    for name, values in ODD.items():
        yield from (json.dumps(whole | {name: value}).encode() for value in values)
    for name in ("reason", "message", "stage", "source", "offset", "arrival_ms", "payload", "attributes"):
        yield json.dumps({key: value for key, value in whole.items() if key != name}).encode()
    yield json.dumps(whole | {"payload": None, "payload_base64": "no!"}).encode()
    yield json.dumps(whole | {"payload": None}).encode()
    yield json.dumps(whole | {"arrival_ms": 5}).encode().replace(b": 5", b": " + b"5" * 5000)
    yield from (DEEP, b'{"a":' * 100_000, b"\xff\xfe", b'"', b"5", b"null", b"{}", b"\x00")


def test_odd_letters_are_letters_again(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """The whole command, with the original bytes in what it rejects."""
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    lines = list(odd_letters())
    write_letters(tmp_path / "in.jsonl", lines)
    ran = timebeam(
        *("replay", tmp_path / "in.jsonl", *store.flags, "--format=opentsdb-text", "--summary=json"),
        f"--dead-letters={tmp_path / 'again'}",
    )
    assert ran.code == 1, ran.err
    again = read_letters(tmp_path, "again")
    assert sorted(map(payload_of, again)) == sorted(lines)
    assert json.loads(ran.out)["rejected"] == {"bad-syntax": len(lines)}
    assert json.loads(ran.out)["points_read"] == len(lines)


def rows_of(store: AnyStore) -> list[Row]:
    """All rows of all tables."""
    return [
        (spec.name, row.key, list(row.cells))
        for spec in store.layout.tables()
        for row in scan_table(store.target, spec.name)
    ]


@st.composite
def lines(draw: st.DrawFn, store: AnyStore, rows: Sequence[Row]) -> bytes:
    """A line that is, or nearly is, a letter: of a line of input, or of a row like those of the tables."""
    table, key, cells = draw(st.sampled_from(rows))
    tables = [spec.name for spec in store.layout.tables()]
    table = draw(st.sampled_from([table, *tables]))
    at = draw(st.integers(0, len(key)))
    key = draw(st.sampled_from([key, key[:at] + draw(st.binary(max_size=5)) + key[at + 1 :]]))
    if draw(st.booleans()):
        family, qualifier, timestamp_ms, value = draw(st.sampled_from(cells))
        qualifier = draw(st.just(qualifier) | st.binary(max_size=12))
        value = draw(st.just(value) | st.binary(max_size=20))
        timestamp_ms = draw(st.just(timestamp_ms) | st.integers(-(1 << 63), 1 << 63))
        cells = [*cells, (family, qualifier, timestamp_ms, value)]
    row = row_payload(table, key, cells)
    put = f"put m {T + draw(st.integers(0, 9))} {draw(st.integers())} host=a"
    payload = draw(st.sampled_from([row, put]) | TEXTS)
    made = letter(payload, draw(STAGES), draw(REASONS), arrival_ms=draw(st.integers(-1, 1 << 45)))
    if draw(st.booleans()):
        made |= {"message_id": "1", "publish_time_ms": 1, "attributes": {draw(st.text()): draw(st.text())}}
    made |= draw(
        st.dictionaries(st.sampled_from([*made, "attributes", "payload_base64"]), VALUES, max_size=2)
    )
    return draw(st.just(json.dumps(made).encode()) | st.binary(max_size=20).filter(is_one_line))


def is_one_line(raw: bytes) -> bool:
    """Whether bytes are one line that is not blank."""
    return len(raw.splitlines()) == 1 and bool(raw.strip()) and raw == raw.splitlines()[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_letter_is_opened_or_rejected_again(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    """And what is taken from a row is written by the layout into that very row, or is a row of an index."""
    store = AnyStore.create(bigtable, prefix, variant)
    (tmp_path / "in.txt").write_text(f"put m {T} 1 host=a\nput m {T + 1} 1.5 host=b\n")
    ingest(
        tmp_path, *store.flags, *store.auto_create, "--format=opentsdb-text", "--input", tmp_path / "in.txt"
    )
    open_fn = _OpenFn(store.target, store.layout)

    @given(lines(store, rows_of(store)))
    def holds(line: bytes) -> None:
        outputs: list[Any] = []
        for read in parsed_letters(Message(line, 7, "file")):
            outputs += [read] if isinstance(read, TaggedOutput) else open_fn.process(read)
        tags = [output.tag if isinstance(output, TaggedOutput) else "main" for output in outputs]
        assert tags in (["main"], [POINTS], [ROWS], [POINTS, ROWS], [REJECTED])
        for tag, output in zip(tags, outputs, strict=True):
            if tag == "main":
                assert output.text == payload_of(json.loads(line))
            elif tag == REJECTED:
                rejected = output.value
                assert rejected.payload == line or rejected.payload == payload_of(json.loads(line))
            else:
                row = json.loads(payload_of(json.loads(line)))
                assert row["table"] != f"{prefix}tsdb-uid"

    holds()


def drawn(strategy: st.SearchStrategy[bytes], count: int) -> list[bytes]:
    """So many examples, the same on every run."""
    examples: list[bytes] = []

    @settings(max_examples=count, database=None, phases=[Phase.generate])
    @given(strategy)
    def take(line: bytes) -> None:
        examples.append(line)

    take()
    return examples


def holds_nothing(line: bytes) -> bool:
    """Whether a line is a letter that is opened, and has no record in it."""
    try:
        made = json.loads(line)
        return made["stage"] not in ("write", "validate") and not payload_of(made).strip()
    except (ValueError, KeyError, TypeError):
        return False


@pytest.mark.parametrize(
    ("flags", "count"),
    long_after(1, [([], 200), ([], 800), (["--packing=append"], 200), (["--bigtable-writer=beam"], 200)]),
)
def test_every_letter_is_stored_or_rejected_again(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, flags: list[str], count: int
) -> None:
    """The whole command: letters in are points stored and letters out, and the summary says so."""
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    (tmp_path / "in.txt").write_text(f"put m {T} 1 host=a\n")
    source = ("--format=opentsdb-text", "--auto-create-metrics", "--input", tmp_path / "in.txt")
    ingest(tmp_path, *store.flags, *source)
    uids = {cell for cell in store.cells() if cell.table.endswith("-uid")}
    sent = [line for line in drawn(lines(store, rows_of(store)), count) if not holds_nothing(line)]
    write_letters(tmp_path / "in.jsonl", sent)
    ran = timebeam(
        *("replay", tmp_path / "in.jsonl", *store.flags, "--format=opentsdb-text", "--summary=json"),
        *(
            f"--dead-letters={tmp_path / 'again'}",
            "--auto-create-tagks=false",
            "--auto-create-tagvs=false",
            *flags,
        ),
    )
    assert ran.code == 0, ran.err
    summary, again = json.loads(ran.out), read_letters(tmp_path, "again")
    points = summary["points_stored"] + summary["points_duplicate"]
    assert sum(summary["rejected"].values()) == len(again) > 20
    of_rows = sum(one["reason"] in ("write-refused", "over-bigtable-limit") for one in again)
    assert summary["points_read"] == points + len(again) - of_rows
    stored = missing_from(sent, again)
    assert 0 < len(stored) <= points  # how many examples are good depends on the modules that are imported
    assert all(payload.startswith((b"put m ", b'{"table": "')) for payload in stored)
    assert {cell for cell in store.cells() if cell.table.endswith("-uid")} == uids


def missing_from(sent: Sequence[bytes], again: Sequence[Json]) -> list[bytes]:
    """The payloads of lines of which no letter is left, neither as a whole nor as their payload."""
    rejected = collections.Counter(payload_of(one).strip() for one in again)
    payloads = []
    for line in sent:
        options = [line.strip()]
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            options.append(payload_of(json.loads(line)).strip())
        key = next((option for option in options if rejected[option]), None)
        if key is None:
            payloads.append(options[-1])
        else:
            rejected[key] -= 1
    return payloads


def test_a_line_that_is_too_long_is_rejected_and_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any place in the file; a whole letter that only blanks make too long is rejected too."""
    monkeypatch.setattr(replay, "LINE_BYTES", 3 << 20)
    good = json.dumps(letter("put m 1 1 host=a", "parse", "bad-tag")).encode()
    long = good + b" " * (4 << 20)
    for name, lines, end in (("a.jsonl", [long, good, long, good], b"\n"), ("b.jsonl.gz", [good, long], b"")):
        text = b"\n".join(lines) + end
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        read = [from_json(message.text) for message in replay._lines(str(tmp_path / name))]
        assert [one.is_complete for one in read] == [line == good for line in lines]
        rejected = [one.rejected for one in read if not one.is_complete]
        assert {(one.reason, one.payload) for one in rejected} == {("line-too-long", long[: 1 << 20])}
        assert rejected[0].offset == text.index(long)


def test_a_file_that_ends_early_says_so(tmp_path: Path) -> None:
    """Beam's own reader takes the end of a truncated file for the end of its letters."""
    good = json.dumps(letter("put m 1 1 host=a", "parse", "bad-tag")).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(good + b"\n")[:-9])
    whole, cut = (from_json(message.text) for message in replay._lines(str(tmp_path / "a.jsonl.gz")))
    assert (whole.is_complete, cut.is_complete, cut.rejected.reason) == (True, False, "truncated-file")


@pytest.mark.long
def test_a_line_of_gigabytes_needs_no_more_memory_than_the_longest_letter(tmp_path: Path) -> None:
    with (tmp_path / "bomb.jsonl.gz").open("wb") as file:
        for _ in range(96):
            file.write(gzip.compress(b"a" * (1 << 24)))
    program = f"""
import resource
from timebeam.transforms.dead_letters.replay import _lines, parsed_letters
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30),) * 2)
lines = _lines({str(tmp_path / "bomb.jsonl.gz")!r})
print([read[0].rejected.reason for line in lines for read in parsed_letters(line)])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[<Reason.LINE_TOO_LONG: 'line-too-long'>]\n", "")


@pytest.mark.parametrize("variant", ["opentsdb", "heroic", "kairosdb-legacy"])
def test_no_letter_has_arrived_in_the_future(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    """A correction of today wins over letters, and over points of rejected rows, that claim otherwise."""
    store = AnyStore.create(bigtable, prefix, variant)
    source = ("--format=opentsdb-text", *store.auto_create, "--input", tmp_path / "in.txt")
    (tmp_path / "in.txt").write_text(f"put m {T} 1 host=a\nput m {T + 1} 1 host=a\n")
    ingest(tmp_path, *store.flags, *source)
    future = [2**62 // 1_000_000, (1 << 63) // 1000 - 1]
    rows = [
        letter(
            row_payload(
                table, key, [(family, qualifier, future[0], value) for family, qualifier, _, value in cells]
            )
        )
        for table, key, cells in rows_of(store)
        if table == store.layout.tables()[0].name
    ]
    points = [
        letter(f"put m {T + n} 2 host=a", "assign", "unknown-name", arrival_ms=at)
        for n, at in enumerate(future)
    ]
    write_letters(tmp_path / "in.jsonl", [*rows, *points])
    before_ms = int(time.time() * 1000)
    ran = timebeam(
        *("replay", tmp_path / "in.jsonl", *store.flags, "--format=opentsdb-text", "--summary=json"),
        f"--dead-letters={tmp_path / 'again'}",
    )
    assert (ran.code, read_letters(tmp_path, "again")) == (0, []), ran.err
    now_ms = int(time.time() * 1000)
    newest = max(cell.timestamp_ms for cell in store.cells() if cell.table == store.layout.tables()[0].name)
    assert before_ms <= newest <= now_ms


@pytest.mark.parametrize("files", [1, 3])
def test_parts_of_a_payload_are_joined_in_any_order_from_any_files(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, files: int
) -> None:
    """And stay letters without the other parts, whose points are counted once."""
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    payload = b"".join(b"put m %d 1 host=a\n" % (T + n) for n in range(100))
    rejected = Rejected(payload, Reason.UNKNOWN_NAME, "no", Stage.ASSIGN, "s", 0, 1, points=100)
    lines = [line.encode() for line in letters(rejected, 1, 900)]
    assert len(lines) > 3
    flags = (*store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--summary=json")

    def replayed(pattern: str, sent: Sequence[bytes]) -> dict[str, Any]:
        for number in range(files):
            write_letters(tmp_path / f"{pattern}{number}.jsonl", sent[number::files])
        again = f"--dead-letters={tmp_path / f'again-{pattern}'}"
        ran = timebeam("replay", tmp_path / f"{pattern}*.jsonl", *flags, again)
        assert ran.code == 0, ran.err
        summary: dict[str, Any] = json.loads(ran.out)
        return summary

    summary = replayed("some", lines[:0:-1] + lines[1:2])
    assert (summary["points_read"], summary["points_stored"]) == (0, 0)
    left = read_letters(tmp_path, "again-some")
    assert [one["message"].partition(":")[0] for one in left] == [
        f"part of a payload in {len(lines)} parts, without 1"
    ] * (len(lines) - 1)
    again = [json.dumps(one).encode() for one in left]
    assert replayed("all", [*again, lines[0]])["points_stored"] == 100
    assert not read_letters(tmp_path, "again-all")
