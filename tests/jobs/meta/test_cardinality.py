"""`timebeam cardinality`: what has the most series."""

from __future__ import annotations

import collections
import json
import random
from pathlib import Path

import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import ingest, timebeam
from tests.support.points import BASE_S
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Envelope, Rejected, Stage
from timebeam.schema.series.series_limits import Cardinality, Rank
from timebeam.transforms.dead_letters.letter import to_json

SINCE_S = BASE_S + 86_400


def test_ranks_are_those_of_plain_counting() -> None:
    chance = random.Random(1)
    first_ms = {
        Series.of(
            f"m{chance.randrange(4)}", {"a": f"v{chance.randrange(9)}", "b": f"w{chance.randrange(30)}"}
        ): (chance.choice([None, 5, 10, 15]))
        for _ in range(200)
    }
    counts = Cardinality(10)
    for series, ms in first_ms.items():
        counts.add(series, ms)
    new = {series for series, ms in first_ms.items() if ms is not None and ms >= 10}
    assert (counts.series, counts.new) == (len(first_ms), len(new))
    assert counts.undated == sum(ms is None for ms in first_ms.values())
    for rank in counts.metrics(9):
        mine = {series for series in first_ms if series.metric == rank.name}
        assert (rank.series, rank.new) == (len(mine), len(mine & new))
        assert rank.largest_key == "b"
        assert rank.values == len({dict(series.tags)["b"] for series in mine})
    for rank in counts.tag_keys(9):
        assert rank.series == len(first_ms)
        assert rank.values == len({dict(series.tags)[rank.name] for series in first_ms})
    expected = collections.Counter(f"{key}={value}" for series in first_ms for key, value in series.tags)
    assert {rank.name: rank.series for rank in counts.tag_values(99)} == expected
    growing = counts.tag_values(5, by_new=True)
    assert [rank.new for rank in growing] == sorted(
        collections.Counter(f"{key}={value}" for series in new for key, value in series.tags).values(),
        reverse=True,
    )[:5]


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """7 series of one metric, 4 of them new, and 3 of another, all old but one."""
    rows = [
        *(("app.a", user, BASE_S if user < 3 else SINCE_S) for user in range(7)),
        *(("app.a", user, SINCE_S + 60) for user in range(3)),
        *(("sys.b", user, SINCE_S if user == 102 else BASE_S) for user in range(100, 103)),
    ]
    path = tmp_path_factory.mktemp("points") / "in.json"
    path.write_text(
        "".join(
            json.dumps(
                {"metric": metric, "timestamp": time_s, "value": 1, "tags": {"user": f"u{user}", "dc": "x"}}
            )
            + "\n"
            for metric, user, time_s in rows
        )
    )
    return path


@pytest.mark.parametrize("variant", ["opentsdb-salted", "heroic", "kairosdb-milliseconds"])
def test_from_row_keys(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, points: Path, variant: str
) -> None:
    """Rows of KairosDB and Heroic begin weeks apart, so all their series begin at once."""
    store = AnyStore.create(bigtable, prefix, variant)
    ingest(tmp_path, *store.flags, *store.auto_create, "--format=opentsdb-json", "--input", points)
    ran = timebeam("cardinality", *store.flags, f"--since={SINCE_S}", "--output=json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    new = (4, 1) if variant.startswith("opentsdb") else (0, 0)
    assert (result["series"], result["new"], result["undated"]) == (10, sum(new), 0)
    assert [Rank(**rank) for rank in result["metrics"]] == [
        Rank("app.a", 7, new[0], 7, "user"),
        Rank("sys.b", 3, new[1], 3, "user"),
    ]
    assert [Rank(**rank) for rank in result["tag_keys"]] == [
        Rank("dc", 10, sum(new), 1),
        Rank("user", 10, sum(new), 10),
    ]
    assert Rank(**result["tag_values"][0]) == Rank("dc=x", 10, sum(new), 1)


def test_from_the_meta_table_as_a_table_and_as_a_picture(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, points: Path
) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    timebeam("tables", "create", *store.flags, "--meta")
    flags = (*store.flags, *store.auto_create, "--format=opentsdb-json")
    ingest(tmp_path, *flags, "--meta=track", "--input", points)
    ran = timebeam("cardinality", *store.flags, "--metric=app.*", "--top=1", "--by=growth", "--since=1h-ago")
    assert ran.code == 0, ran.err
    # The file has just been written: so its series have just arrived.
    assert [line.split() for line in ran.out.splitlines() if line] == [
        ["series", "new", "values", "metric"],
        ["7", "7", "7", "app.a", "(user)"],
        ["series", "new", "values", "tag", "key"],
        ["7", "7", "1", "dc"],
        ["series", "new", "values", "tag", "value"],
        ["7", "7", "1", "dc=x"],
    ]
    assert "7 series, 7 of them new, from the meta table" in ran.err
    picture = tmp_path / "top.png"
    ran = timebeam("cardinality", *store.flags, "--output", picture)
    assert (ran.code, ran.out) == (0, f"wrote {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert timebeam("cardinality", *store.flags, "--output", tmp_path / "top.svg").code == 2


def test_producers_of_rejected_series(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    letters = [
        (Reason.SERIES_LIMIT, Envelope("1", 1, {"app": "shop"}), "s"),
        (Reason.SERIES_LIMIT, Envelope("2", 1, {"app": "shop"}), "s"),
        (Reason.SERIES_LIMIT, None, "file.json"),
        (Reason.BAD_TAG, Envelope("3", 1, {"app": "bank"}), "s"),
    ]
    path = tmp_path / "dead.jsonl"
    lines = [
        to_json(Rejected(b"x", reason, "", Stage.ASSIGN, source, 0, 1, envelope), 1)
        for reason, envelope, source in letters
    ]
    path.write_text("".join(line + "\n" for line in lines))
    ran = timebeam("cardinality", *store.flags, "--rejected", path, "--output=json")
    assert [(rank["name"], rank["series"]) for rank in json.loads(ran.out)["producers"]] == [
        ("app=shop", 2),
        ("source=file.json", 1),
    ]
    lines = timebeam("cardinality", *store.flags, "--rejected", path).out.splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["rejected", "producer"],
        ["2", "app=shop"],
        ["1", "source=file.json"],
    ]
    for line in ("not JSON", '{"reason": "series-limit", "attributes": 5}'):
        path.write_text(line + "\n")
        ran = timebeam("cardinality", *store.flags, "--rejected", path)
        assert (ran.code, "does not hold dead letters" in ran.err) == (2, True)
    assert timebeam("cardinality", *store.flags, "--rejected", tmp_path / "none").code == 2
