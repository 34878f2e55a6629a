"""Annotations and histograms of random questions, beside a plain evaluation of what was stored."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest

from tests.support.stored import Store
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.histograms import Histogram, encode
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.query.question import Question, TagFilter, literals_of
from timebeam.schema.stores.opentsdb.columns import annotation_cells
from timebeam.schema.stores.opentsdb.keys import row_key, series_key
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.opentsdb.read_annotations import find_histograms, series_annotations

START_S, HOURS, QUESTIONS = 1_709_287_200, 30, 40
VALUES = {"dc": ["x", "y"], "host": ["a", "b", "c"], "rack": ["1", "2"]}
NAMES = [Name("metrics", "load")]
NAMES += [Name("tagk", key) for key in VALUES]
NAMES += [Name("tagv", value) for values in VALUES.values() for value in values]
UIDS = {name: number.to_bytes(3, "big") for number, name in enumerate(NAMES, 1)}
SERIES = [
    {"dc": dc, "host": host} | ({"rack": rack} if rack else {})
    for dc, host, rack in itertools.product(VALUES["dc"], VALUES["host"], ["", *VALUES["rack"]])
]

Stored = Mapping[Series, Mapping[int, Histogram]]


@pytest.fixture(scope="module", params=[0, 1])
def stored(request: pytest.FixtureRequest, bigtable: tuple[str, str]) -> tuple[Store, Stored]:
    """For each series, at some times an annotation and a histogram with the number of the second as count."""
    chance = random.Random(request.param)
    store = Store.create(bigtable, f"attached-{request.param}-", salt_width=request.param, salt_buckets=3)
    options, uid_table = store.layout.options, store.layout.options.uid_table
    rows = []
    for (kind, text), uid in UIDS.items():
        rows += [Row(uid_table, text.encode(), [Cell("id", kind.encode(), 0, uid)])]
        rows += [Row(uid_table, uid, [Cell("name", kind.encode(), 0, text.encode())])]
    write_all(store.target, uid_table, rows)
    content: dict[Series, dict[int, Histogram]] = {}
    cells: dict[bytes, list[Cell]] = {}
    for tags in SERIES:
        pairs = [(UIDS[Name("tagk", key)], UIDS[Name("tagv", value)]) for key, value in tags.items()]
        key = series_key(options, UIDS[NAMES[0]], pairs)
        tsuid = key.head[options.salt_width :] + key.tail
        times = content[Series.of("load", tags)] = {}
        for second in chance.sample(range(HOURS * 3600), 20):
            histogram = times[(START_S + second) * 1000] = Histogram({(0.0, 1.0): second}, 0, 0)
            note = Annotation(tsuid.hex().upper(), START_S + second, description=str(second))
            column = annotation_cells.qualifier(START_S + second)
            row = cells.setdefault(row_key(key, (START_S + second) // 3600 * 3600), [])
            row += [Cell("t", column, 0, note.stored())]
            row += [Cell("t", b"\6" + column[1:], 0, bytes(encode(histogram, 0)))]
    rows = [Row(store.layout.data_table, key, row_cells) for key, row_cells in cells.items()]
    write_all(store.target, store.layout.data_table, rows)
    return store, content


def random_question(chance: random.Random) -> Question:
    """Literals, sometimes with a filter by name, or without other tags."""
    first, last = sorted(chance.sample(range(HOURS * 3600), 2))
    filters = [
        TagFilter("literal_or", key, "|".join(chance.sample(values, chance.randint(1, 2))))
        for key, values in VALUES.items()
        if chance.random() < 0.5
    ]
    if chance.random() < 0.2:
        filters.append(TagFilter("regexp", "host", "[ab]"))
    start_ms, end_ms = (START_S + first) * 1000, (START_S + last) * 1000
    explicit = bool(filters) and chance.random() < 0.4
    return Question("load", literals_of(filters), (), "none", None, start_ms, end_ms, None, filters, explicit)


def passes(question: Question, tags: Mapping[str, str]) -> bool:
    """Whether a series has what the filters ask for."""
    if question.explicit_tags and tags.keys() != {each.key for each in question.filters}:
        return False
    return all(
        tags.get(each.key) in (each.text.split("|") if each.kind == "literal_or" else ["a", "b"])
        for each in question.filters
    )


def test_random_questions(stored: tuple[Store, Stored]) -> None:
    store, content = stored
    chance, found = random.Random(7), 0
    for _ in range(QUESTIONS):
        question = random_question(chance)
        expected = {
            series: within
            for series, times in content.items()
            if passes(question, dict(series.tags))
            if (
                within := {
                    time_ms: histogram
                    for time_ms, histogram in times.items()
                    if question.start_ms <= time_ms <= question.end_ms
                }
            )
        }
        found += len(expected)
        histograms, corruption = find_histograms(store.target, store.layout, question)
        assert (histograms, corruption) == (expected, []), question
        notes, corruption = series_annotations(store.target, store.layout, question)
        texts = {series: {int(note.description) for note in of} for series, of in notes.items() if of}
        assert corruption == []
        assert texts == {
            series: {histogram.buckets[0.0, 1.0] for histogram in times.values()}
            for series, times in expected.items()
        }
    assert found > QUESTIONS
