"""`timebeam ingest --input-subscription` on this machine: everything stored, then acknowledged."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from pathlib import Path

import pytest
import zstandard

from tests.support.commands import timebeam
from tests.support.processes.streams import T, letters, line, point, stream, values
from tests.support.pubsub_server import SUBSCRIPTION, TOPIC, Published, PubSubServer
from tests.support.stored import Store
from timebeam.schema.bits.protobuf import encoded_bytes as field
from timebeam.schema.bits.protobuf import encoded_varint as varint
from timebeam.schema.bits.reasons import Reason


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


@pytest.mark.parametrize("packing", ["points", "compacted", "append"])
def test_messages_of_one_point_and_of_many(store: Store, tmp_path: Path, packing: str) -> None:
    ones = [Published(line(number), 1000 + number) for number in range(50)]
    lines = Published(b"\n".join(line(number) for number in range(50, 70)), 2000)
    array = Published(json.dumps([point(number) for number in range(70, 90)]).encode(), 2001)
    document = Published(json.dumps([point(number) for number in range(90, 99)], indent=1).encode(), 2002)
    with PubSubServer([*ones, lines, array, document]).running() as server:
        summary = stream(store, tmp_path, f"--packing={packing}")
        assert server.left == 0
    assert values(store) == dict.fromkeys(range(99), 1.5)
    assert (summary["points_read"], summary["points_stored"], summary["rejected"]) == (99, 99, {})
    if packing == "points":
        assert {cell[2] for cell in store.cells()} == {*range(1000, 1050), 2000, 2001, 2002}


def test_compressed_messages_and_messages_of_other_formats(store: Store, tmp_path: Path) -> None:
    avro = json.dumps({"metric": "m", "timestamp": T + 4, "value": {"double": 1.5}, "tags": {"host": "a"}})
    messages = [
        Published(gzip.compress(line(0)), 1, {"content-encoding": "gzip"}),
        Published(zstandard.compress(line(1)), 2, {"content-encoding": "ZSTD"}),
        Published(b"put m %d 1.5 host=a" % (T + 2), 3, {"format": "opentsdb-text"}),
        Published(b"m,host=a value=1.5 %d000000000" % (T + 3), 4, {"format": "influx"}),
        Published(avro.encode(), 5, {"format": "avro", "googclient_schemaencoding": "JSON"}),
        Published(line(5), 6, {"content-encoding": "identity"}),
        Published(b"m,host=a value=1.5 %d" % (T + 6), 7, {"format": "influx", "influx_precision": "s"}),
    ]
    with PubSubServer(messages).running() as server:
        formats = ("--formats", "opentsdb-text,influx", "--formats", "avro")
        stream(store, tmp_path, "--influx-metric={measurement}.{field}", *formats)
        assert server.left == 0
    assert values(store) == dict.fromkeys(range(7), 1.5)
    assert not letters(tmp_path)


def test_messages_choose_among_the_formats_that_are_named(store: Store, tmp_path: Path) -> None:
    messages = [
        Published(line(0), 1, {"format": "opentsdb-json"}),
        Published(b"put m %d 1.5 host=a" % (T + 1), 2, {"format": "opentsdb-text"}),
        Published(b"m,host=a value=1.5 %d000000000" % (T + 2), 3, {"format": "influx"}),
    ]
    with PubSubServer(messages).running() as server:
        summary = stream(store, tmp_path, "--formats=opentsdb-text")
        assert server.left == 0
    assert values(store) == dict.fromkeys(range(2), 1.5)
    (letter,) = letters(tmp_path)
    assert (letter["reason"], letter["payload"]) == ("unknown-format", messages[2].data.decode())
    assert "--formats influx" in letter["message"]
    assert summary["rejected"] == {"unknown-format": 1}


def test_formats_must_exist(store: Store) -> None:
    ran = timebeam(
        *(
            "ingest",
            *store.flags,
            "--format=influx",
            f"--input-subscription={SUBSCRIPTION}",
            "--formats",
            "cvs",
        )
    )
    assert ran.code == 2
    assert "unknown format 'cvs'" in ran.err


def test_what_is_rejected_has_all_that_is_known_of_its_message(store: Store, tmp_path: Path) -> None:
    half = line(1) + b"\nbad\n" + line(2)
    broken = gzip.compress(line(3))[:-4]
    messages = [
        Published(line(0), 10),
        Published(half, 11, {"site": "lab"}),
        Published(broken, 12, {"content-encoding": "gzip"}),
        Published(line(4), 13, {"content-encoding": "br"}),
        Published(line(5), 14, {"format": "csv"}),
        Published(gzip.compress(b"[1]"), 15, {"content-encoding": "gzip", "site": "x"}),
        Published(json.dumps(point(7) | {"metric": "a b"}).encode(), 16),
        Published(json.dumps(point(8) | {"metric": "東"}).encode(), 17),
    ]
    with PubSubServer(messages).running() as server:
        summary = stream(store, tmp_path)
        assert server.left == 0
    assert values(store) == dict.fromkeys([0, 1, 2], 1.5)
    found = {letter["message_id"]: letter for letter in letters(tmp_path)}
    assert {number: letter["reason"] for number, letter in found.items()} == {
        "1": "bad-syntax",
        "2": "corrupt-message",
        "3": "corrupt-message",
        "4": "unknown-format",
        "5": "bad-syntax",
        "6": "bad-metric",
        "7": "name-not-storable",
    }
    assert (found["1"]["payload"], found["1"]["offset"]) == ("bad", half.index(b"bad"))
    assert found["1"]["attributes"] == {"site": "lab"}
    assert [found[number]["publish_time_ms"] for number in sorted(found)] == [11, 12, 13, 14, 15, 16, 17]
    assert found["2"]["attributes"] == {"content-encoding": "gzip"}
    assert found["5"]["attributes"] == {"site": "x"}
    assert found["5"]["payload"] == "1"
    assert {letter["source"] for letter in found.values()} == {SUBSCRIPTION}
    assert summary["points_read"] == 10
    assert sum(summary["rejected"].values()) == 7


def test_a_topic_is_read_through_a_subscription_that_goes_again(store: Store, tmp_path: Path) -> None:
    with PubSubServer([Published(line(0), 10)]).running() as server:
        stream(store, tmp_path, f"--input-topic={TOPIC}")
        assert server.subscriptions == {SUBSCRIPTION}
    assert values(store) == {0: 1.5}


def test_dead_letters_go_to_a_topic_and_come_back_as_input(store: Store, tmp_path: Path) -> None:
    """A metric that may not be created is rejected; after the fix its letters are replayed, from a
    subscription, and a correction that came after it still wins."""
    old = [Published(json.dumps(point(n, 1.0, "late")).encode(), 100 + n) for n in range(5)]
    dead = "projects/local-project/topics/dead"
    with PubSubServer([*old, Published(b"\xff", 200)]).running() as server:
        summary = stream(store, tmp_path, f"--dead-letters={dead}", "--auto-create-metrics=false")
        assert summary["rejected"] == {"bad-encoding": 1, "unknown-name": 5}
        published = server.published
    assert {message.attributes["reason"] for message in published} == {"unknown-name", "bad-encoding"}
    with PubSubServer([Published(json.dumps(point(2, 2.0, "late")).encode(), 5000)]).running():
        stream(store, tmp_path)
    for _ in range(2):
        with PubSubServer(published).running() as server:
            ran = timebeam(
                *("replay", SUBSCRIPTION, *store.flags, "--format=opentsdb-json", "--stop-when-idle=0.5"),
                *("--dead-letters", tmp_path / "again", "--summary=json"),
            )
            assert ran.code == 0, ran.err
            assert server.left == 0
    assert values(store) == {0: 1.0, 1: 1.0, 2: 2.0, 3: 1.0, 4: 1.0}
    again = [json.loads(text) for path in tmp_path.glob("again*") for text in path.read_text().splitlines()]
    assert [letter["reason"] for letter in again] == [Reason.BAD_ENCODING.value] * 2
    assert again[0]["payload_base64"] == "/w=="
    assert again[0]["publish_time_ms"] == 200


def test_the_project_local_of_an_emulator_takes_dead_letters(store: Store, tmp_path: Path) -> None:
    """Beam takes no project of less than six characters."""
    dead = "projects/local/topics/dead"
    with PubSubServer([Published(line(0), 10), Published(b"\xff", 200)]).running() as server:
        summary = stream(store, tmp_path, f"--dead-letters={dead}")
        assert server.left == 0
        assert [message.attributes["reason"] for message in server.published] == ["bad-encoding"]
    assert summary["rejected"] == {"bad-encoding": 1}
    assert values(store) == {0: 1.5}


def test_no_byte_of_a_long_rejected_message_is_lost_in_a_topic(store: Store, tmp_path: Path) -> None:
    """Control characters take six bytes each as JSON, and a message of a topic has at most 10 MB."""
    sent = [b"\x01" * 2_000_000, b"\xff" * 7_000_000]
    dead = "projects/local-project/topics/dead"
    with PubSubServer([Published(data, 10 + n) for n, data in enumerate(sent)]).running() as server:
        stream(store, tmp_path, "--format=otlp", f"--dead-letters={dead}")
        assert server.left == 0
        published = server.published
    assert max(len(message.data) for message in published) < 10_000_000
    with PubSubServer(published).running() as server:
        ran = timebeam(
            *("replay", SUBSCRIPTION, *store.flags, "--format=otlp", "--stop-when-idle=0.5"),
            *("--dead-letters", tmp_path / "dead"),
        )
        assert (ran.code, server.left) == (1, 0), ran.err  # all is rejected again
    again = letters(tmp_path)
    assert sorted(base64.b64decode(letter["payload_base64"]) for letter in again) == sorted(sent)


def test_a_rejection_that_quotes_tag_values_of_megabytes_fits_a_topic(store: Store, tmp_path: Path) -> None:
    """It was tried for 49 seconds, and then the process ended; the message beside it is stored."""
    number = varint(3 << 3 | 1) + struct.pack("<Q", 10**18) + varint(4 << 3 | 1) + struct.pack("<d", 1.5)
    request = [field(7, field(1, b"k") + field(2, field(1, text))) for text in (b"\x01" * 2_000_000, b"\x02")]
    bad, good = (
        field(1, field(2, field(2, field(1, b"m") + field(5, field(1, number + attributes)))))
        for attributes in (b"".join(request), request[1].replace(b"\x02", b"a"))
    )
    dead = "projects/local-project/topics/dead"
    with PubSubServer([Published(bad, 10), Published(good, 11)]).running() as server:
        found = stream(store, tmp_path, "--format=otlp", "--auto-create-metrics", f"--dead-letters={dead}")
        assert server.left == 0
        (letter,) = [json.loads(message.data) for message in server.published]
    assert (letter["reason"], len(letter["message"])) == ("duplicate-tag", 1000)
    assert base64.b64decode(letter["payload_base64"]) == bad
    assert found["points_stored"] == 1


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--input-subscription=points"], "is not projects/PROJECT/subscriptions/NAME"),
        (["--input-topic=points"], "is not projects/PROJECT/topics/NAME"),
        (["--input-topic=a", "--input-subscription=b"], "give one of --input"),
        ([], "give one of --input"),
        ([f"--input-subscription={SUBSCRIPTION}", "--flush-seconds=-1"], "--flush-seconds"),
        (
            [f"--input-subscription={SUBSCRIPTION}", "--dead-letters=projects/x/topics/y"],
            "no project name of this form",
        ),
    ],
)
def test_wrong_usage(store: Store, flags: list[str], text: str) -> None:
    ran = timebeam("ingest", *store.flags, "--format=opentsdb-json", *flags)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_a_subscription_or_topic_that_is_not_there(store: Store) -> None:
    with PubSubServer().running():
        for flag in (
            "--input-subscription=projects/local/subscriptions/no",
            "--input-topic=projects/local/topics/no",
        ):
            ran = timebeam("ingest", *store.flags, "--format=opentsdb-json", flag)
            assert ran.code == 1
            assert "does not exist: create it, or correct its name" in ran.err
            assert ran.err.count("\n") == 1
