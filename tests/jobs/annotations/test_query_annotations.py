"""Annotations in the answers of `timebeam query`, in words, in JSON and in plots."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.inputs.annotations import A, B, load, notes, query, send
from tests.support.points import BASE_S
from tests.support.stored import Store


@pytest.fixture(scope="module")
def annotated(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Annotations of both series, and a global one; only read."""
    folder = tmp_path_factory.mktemp("annotated")
    store = load(Store.create(bigtable, "annotated_"), folder)
    send(
        store,
        folder,
        {"tsuid": A, "startTime": BASE_S + 60, "description": "deployed", "custom": {"by": "me"}},
        {"tsuid": B, "startTime": BASE_S * 1000 + 500, "endTime": BASE_S + 600, "description": "slow"},
        {"startTime": BASE_S + 4000, "description": "power", "notes": "all"},
    )
    return store


def test_annotations_in_the_answer(annotated: Store) -> None:
    of_a = [
        {
            "tsuid": A,
            "description": "deployed",
            "notes": "",
            "custom": {"by": "me"},
            "startTime": BASE_S + 60,
            "endTime": 0,
        }
    ]
    answer = json.loads(query(annotated, "--group-by=host", "--output=json").out)
    assert list(answer[0]) == ["metric", "tags", "aggregateTags", "annotations", "dps"]
    assert answer[0]["annotations"] == of_a
    assert [one["description"] for one in answer[1]["annotations"]] == ["slow"]
    (together,) = json.loads(query(annotated, "--output=json", "--global-annotations").out)
    assert [one["description"] for one in together["annotations"]] == ["slow", "deployed"]
    assert [one["description"] for one in together["globalAnnotations"]] == ["power"]
    apart = json.loads(query(annotated, "--output=json", "--aggregator=none", "--tag=host=a").out)
    assert [one["annotations"] for one in apart] == [of_a]
    without = query(annotated, "--output=json", "--no-annotations").out
    assert "nnotations" not in without
    outside = query(annotated, "--output=json", start=BASE_S + 601).out
    assert "nnotations" not in outside


def test_annotations_in_words_and_alone(annotated: Store, tmp_path: Path) -> None:
    table = query(annotated, "--group-by=host", "--global-annotations").out
    assert "  2013-01-01T00:01:00Z  * deployed (by=me)\n" in table
    assert "  2013-01-01T00:00:00.500Z to 2013-01-01T00:10:00.000Z  * slow\n" in table
    assert table.endswith("global annotations\n  2013-01-01T01:06:40Z  * power; all\n")
    csv = query(annotated, "--output=csv", "--global-annotations")
    assert "left out: 3 annotations" in csv.err
    assert "slow" not in csv.out
    alone = query(annotated, "--output=annotations", "--global-annotations").out
    target = annotated.target
    other = Store.create((target.project, target.instance), annotated.layout.options.table_prefix + "o")
    load(other, tmp_path)
    send(other, tmp_path, *map(json.loads, alone.splitlines()))
    assert notes(other) == notes(annotated)


def test_a_series_with_annotations_and_no_points(annotated: Store) -> None:
    (result,) = json.loads(
        query(annotated, "--output=json", "--tag=host=a", start=BASE_S + 1, end=BASE_S + 100).out
    )
    assert result["dps"] == {}
    assert [one["description"] for one in result["annotations"]] == ["deployed"]


def test_annotations_in_plots(annotated: Store, tmp_path: Path) -> None:
    plain, marked, page = tmp_path / "plain.png", tmp_path / "marked.png", tmp_path / "page.html"
    for path, flags in ((plain, ["--no-annotations"]), (marked, []), (page, ["--global-annotations"])):
        query(annotated, "--group-by=host", f"--output={path}", *flags)
    assert plain.read_bytes() != marked.read_bytes()
    text = page.read_text("utf-8")
    assert re.findall(r"<li>.*<span>(.*)</span></li>", text) == ["slow", "deployed (by=me)", "power; all"]
    numbers = re.findall(r'"hovertext":"[^"]*: ([^"]*)","showarrow":false,"text":"(\d)","x":(\d+)', text)
    assert numbers == [
        ("slow", "1", str(BASE_S * 1000 + 500)),
        ("deployed (by=me)", "2", str(BASE_S * 1000 + 60_000)),
        ("power; all", "3", str(BASE_S * 1000 + 4_000_000)),
    ]
