"""What a real TSD stored (tests/golden/opentsdb) against what is encoded and decoded here."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tests.golden.cases import Case, cases
from tests.schema.stores.plain_opentsdb import Number, number, split_append
from tests.support.decoded import decode_row
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing, RowFragment
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.formats import message_format
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.opentsdb.keys import parse_key

Cells = dict[tuple[bytes, bytes], bytes]

STRICTER = {
    "puts/http_bad_value_1.5f": (Reason.BAD_NUMBER, "Java's float suffix: a TSD takes it, no one else does"),
    "puts/time_max_ms_int": (Reason.TIMESTAMP_OUT_OF_RANGE, "a TSD wraps the base time to 2014"),
    "tags/unicode": (Reason.NAME_NOT_STORABLE, "a TSD stores letters beyond ISO-8859-1 as ?, all alike"),
}
"""Where this project rejects what a TSD stores, and why."""

REJECTED = {
    "puts/http_bad_value_NaN": Reason.BAD_NUMBER,
    "puts/http_bad_value_Infinity": Reason.BAD_NUMBER,
    "puts/http_bad_value_-Infinity": Reason.BAD_NUMBER,
    "puts/http_bad_value_": Reason.EMPTY_VALUE,
    "puts/http_bad_value_abc": Reason.BAD_NUMBER,
    "puts/http_bad_value_9223372036854775808": Reason.NUMBER_OUT_OF_RANGE,
    "puts/http_bad_value_0x10": Reason.BAD_NUMBER,
    "puts/http_bad_value_1e400": Reason.NUMBER_OUT_OF_RANGE,
    "puts/time_too_big_int": Reason.TIMESTAMP_OUT_OF_RANGE,
    "puts/time_zero_int": Reason.BAD_TIMESTAMP,
    "puts/time_negative_int": Reason.BAD_TIMESTAMP,
    "tags/nine_tags": Reason.TOO_MANY_TAGS,
    "tags/no_tags": Reason.NO_TAGS,
    "tags/char_in_value_:": Reason.BAD_TAG,
    "tags/char_in_value_#": Reason.BAD_TAG,
    "tags/char_in_value_@": Reason.BAD_TAG,
    "tags/char_in_value_,": Reason.BAD_TAG,
    "tags/char_in_value_%": Reason.BAD_TAG,
    "tags/char_in_value_\\": Reason.BAD_TAG,
    "tags/char_in_value_+": Reason.BAD_TAG,
    "tags/empty_tag_value": Reason.BAD_TAG,
}
"""What a TSD refuses too, and the reason given here."""

POINT_GROUPS = ("puts", "tags", "salt", "width4", "uid", "annotations", "histogram")
ALL_GROUPS = (*POINT_GROUPS, "compaction", "appends")


def title(case: Case) -> str:
    return f"{case.group}/{case.name}"


def all_of(*groups: str) -> list[Any]:
    """The cases of these groups as test parameters."""
    return [pytest.param(case, id=title(case)) for group in groups for case in cases(group)]


def encoded(case: Case, *, together: bool = False) -> tuple[list[list[RowFragment]], list[Reason]]:
    """The fragments of each step of a case that puts points, and why points were rejected.

    Args:
      together: the steps arrive at the same time, as a TSD's compaction takes them; else in turn.
    """
    steps, rejected = [], []
    for step, (name, text) in enumerate(case.messages()):
        layout = case.layout(name)
        parsed = message_format(name).parse(Message(text, 0 if together else step, offset=1000 * step))
        rejected += [rejected.reason for rejected in parsed.rejected]
        keys: list[SeriesKey | None] = []
        for series in parsed.batch.series:
            error = layout.reject(series)
            if error:
                rejected.append(error.reason)
            keys.append(None if error else layout.series_key(series, case.uids))
        kept = [i for i, series in enumerate(parsed.batch.index.tolist()) if keys[series]]
        result = layout.encode(parsed.batch.take(np.array(kept, np.int64)), keys)
        rejected += [rejected.reason for rejected in result.rejected]
        steps.append(list(result.fragments))
    return steps, rejected


def packed(case: Case, fragments: list[RowFragment], packing: Packing) -> Cells:
    """The cells of some fragments: (row key, qualifier) to value."""
    rows = defaultdict(list)
    for fragment in fragments:
        rows[fragment.key].append(fragment.packed)
    found = {}
    for key, parts in rows.items():
        for cell in pack_row(case.layout("opentsdb-text"), "tsdb", key, parts, packing).cells:
            assert cell.family == "t"
            found[key, cell.qualifier] = cell.value
    return found


def data_cells(case: Case) -> Cells:
    """The cells of a case that hold points: no annotations (01), no histograms (06)."""
    return {
        (key, qualifier): value
        for key, qualifier, value in case.cells
        if len(qualifier) % 2 == 0 or qualifier[0] == 5
    }


@pytest.mark.parametrize("case", all_of(*POINT_GROUPS))
def test_points_become_the_cells_of_a_tsd(case: Case) -> None:
    steps, rejected = encoded(case)
    stored: Cells = {}
    for fragments in steps:
        stored |= packed(case, fragments, Packing.POINTS)
    if title(case) in STRICTER:
        assert (stored, rejected) == ({}, [STRICTER[title(case)][0]])
        assert data_cells(case)
    else:
        assert stored == data_cells(case)
        assert rejected == ([REJECTED[title(case)]] if title(case) in REJECTED else [])


@pytest.mark.parametrize("case", all_of("compaction"))
def test_points_become_the_compacted_columns_of_a_tsd(case: Case) -> None:
    steps, rejected = encoded(case, together=True)
    fragments = [fragment for step in steps for fragment in step]
    assert packed(case, fragments, Packing.COMPACTED) == data_cells(case)
    assert packed(case, fragments[::-1], Packing.COMPACTED) == data_cells(case)
    assert rejected == []


@pytest.mark.parametrize("case", all_of("appends"))
def test_appended_points_become_the_append_column_of_a_tsd(case: Case) -> None:
    steps, rejected = encoded(case)
    values: dict[tuple[bytes, bytes], bytes] = defaultdict(bytes)
    for fragments in steps:
        for cell, value in packed(case, fragments, Packing.APPEND).items():
            values[cell] += value
    if case.name == "one_request_many":  # a TSD's appends of one request race: any order
        assert values.keys() == data_cells(case).keys()
        for cell, value in data_cells(case).items():
            assert sorted(split_append(values[cell])) == sorted(split_append(value))
    else:
        assert values == data_cells(case)
    assert rejected == []


def put_points(case: Case) -> dict[tuple[Series, int], Number]:
    """The points that a TSD took, by series and time in ms, read without the code under test."""
    points = {}
    for step in case.steps:
        if "telnet" in step:
            records = [line.split(" ")[1:] for line in step["telnet"]]
            dotted = [(metric, time.replace(".", ""), text, tags) for metric, time, text, *tags in records]
            puts = [
                (m, int(time), text, dict(tag.split("=") for tag in tags)) for m, time, text, tags in dotted
            ]
        elif step["http"][1].startswith("/api/put"):
            body = step["http"][2]
            content = json.loads(body if isinstance(body, str) else json.dumps(body), parse_float=str)
            bad = [error["datapoint"]["timestamp"] for error in step["answer"]["errors"]]
            puts = [
                (put["metric"], put["timestamp"], str(put["value"]), put["tags"])
                for put in content
                if put["timestamp"] not in bad
            ]
        else:
            continue
        for metric, time, text, tags in puts:
            found = float(text) if set(text) & set(".eE") else int(text)
            series = Series(metric, tuple(sorted(tags.items())))
            points[series, time * 1000 if time < 1 << 32 else time] = number(found)
    return points


def decoded(case: Case) -> tuple[dict[tuple[Series, int], Number], int]:
    """The points in the cells of a case, and the cells passed over."""
    layout = case.layout("opentsdb-json")
    texts = {(name.kind, uid): name.text for name, uid in case.uids.items()}
    rows = defaultdict(list)
    for key, qualifier, value in case.cells:
        rows[key].append(Cell("t", qualifier, 1, value))
    points, skipped = {}, 0
    for key, row in rows.items():
        try:
            metric, *tags = [texts[name] for name in parse_key(layout.options, key).uids]
        except ValueError:
            assert key.startswith(bytes(3))  # the row of global annotations, which has no series
            continue
        series = Series.of(metric, dict(zip(tags[::2], tags[1::2], strict=True)))
        content = decode_row(layout, Row("tsdb", key, row), series)
        assert content.corruption == []
        skipped += content.skipped
        assert content.batch.times_ms.tolist() == sorted(set(content.batch.times_ms.tolist()))
        for _, time, value in content.batch.points():
            points[series, time] = number(value)
    return points, skipped


@pytest.mark.parametrize("case", all_of(*ALL_GROUPS))
def test_the_cells_of_a_tsd_are_read_as_the_points_put(case: Case) -> None:
    if title(case) in STRICTER:
        return
    points, skipped = decoded(case)
    assert points == put_points(case)
    global_notes = case.name.startswith("global")
    assert skipped == (0 if global_notes else len(case.cells) - len(data_cells(case)))


@pytest.mark.parametrize("case", all_of("compaction"))
def test_a_query_to_a_tsd_answers_the_same(case: Case) -> None:
    points, _ = decoded(case)
    by_second = {
        str(time // 1000): value for (_, time), value in sorted(points.items(), key=lambda p: p[0][1])
    }
    (answer,) = case.steps[-1]["answer"]  # whole seconds: of several ms in one the last
    assert by_second.keys() == answer["dps"].keys()
    for second, value in answer["dps"].items():
        kind, found = by_second[second]
        assert (number(float(found)) if kind == "int" else (kind, found)) == number(float(value))


def test_every_case_is_met() -> None:
    met = {title(case) for group in ALL_GROUPS for case in cases(group)}
    assert met >= STRICTER.keys() | REJECTED.keys()
    assert len(met) == 124
    stored_nothing = {title(case) for group in ALL_GROUPS for case in cases(group) if not case.cells}
    assert stored_nothing == REJECTED.keys()
