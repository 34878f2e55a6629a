"""Every reason that formats and layouts can give is given here by one input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from timebeam import schema
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.formats import Message, format_class
from timebeam.schema.stores.kairosdb.layout import KairosDb
from timebeam.schema.stores.opentsdb.layout import OpenTsdb

LINES = {
    Reason.BAD_ENCODING: b"put m 1356998400 5 host=\xff",
    Reason.BAD_SYNTAX: b"put",
    Reason.BAD_METRIC: b"put  1356998400 5 host=a",
    Reason.BAD_TAG: b"put m 1356998400 5 host",
    Reason.DUPLICATE_TAG: b"put m 1356998400 5 host=a host=b",
    Reason.NO_TAGS: b"put m 1356998400 5",
    Reason.TOO_MANY_TAGS: b"put m 1356998400 5" + b"".join(b" k%d=v" % i for i in range(31)),
    Reason.NAME_NOT_STORABLE: "put m 1356998400 5 host=東京".encode(),
    Reason.BAD_TIMESTAMP: b"put m 0 5 host=a",
    Reason.TIMESTAMP_OUT_OF_RANGE: b"put m 9999999999999 5 host=a",
    Reason.EMPTY_VALUE: b"put m 1356998400  host=a",
    Reason.BAD_NUMBER: b"put m 1356998400 NaN host=a",
    Reason.NUMBER_OUT_OF_RANGE: b"put m 1356998400 1e400 host=a",
}
"""A line of `opentsdb-text` that is rejected, by the format or the layout, for each reason."""


CONTAINERS = {Reason.TRUNCATED_FILE: b"Obj\x01", Reason.CORRUPT_FILE: b"put"}
"""The same of `avro`."""


ODD_POINTS = {
    Reason.VALUE_NOT_STORABLE: (Series.of("m", {"host": "a"}), "text"),
    Reason.SERIES_NOT_STORABLE: (Series.of("m", {"host": "a"}, {"pod": "b"}), 1),
}
"""Points that other systems have and OpenTSDB's layout cannot hold."""


LONG = Series.of("m" * 4096, {"host": "a"})
"""A series whose row keys are longer than Bigtable takes, in a layout that stores names as they are."""


def test_keys_over_the_limit_of_bigtable_are_rejected() -> None:
    error = KairosDb().reject(LONG)
    assert error is not None
    assert error.reason is Reason.OVER_BIGTABLE_LIMIT


def test_messages_that_are_no_message_are_rejected() -> None:
    (rejected,) = format_class("heroic-proto")().parse(Message(b"\xff", 1)).rejected
    assert rejected.reason is Reason.CORRUPT_MESSAGE


@pytest.mark.parametrize("reason", ODD_POINTS)
def test_each_reason_for_points_of_other_systems_is_given(reason: Reason) -> None:
    series, value = ODD_POINTS[reason]
    batch = PointBatch.of([(series, 1_356_998_400_000, False, value)], 1)
    error = OpenTsdb().reject(series)
    encoded = OpenTsdb().encode(batch, [SeriesKey(b"", b"")]) if error is None else None
    given = [rejected.reason for rejected in encoded.rejected] if encoded else [error.reason]
    assert given == [reason]


@pytest.mark.parametrize("reason", [*LINES, *CONTAINERS])
def test_each_reason_is_given(reason: Reason) -> None:
    form, text = ("avro", CONTAINERS[reason]) if reason in CONTAINERS else ("opentsdb-text", LINES[reason])
    parsed = format_class(form)().parse(Message(text, 1))
    given = [rejected.reason for rejected in parsed.rejected]
    given += [error.reason for series in parsed.batch.series if (error := OpenTsdb().reject(series))]
    assert given == [reason]


def test_no_reason_is_left_out() -> None:
    root = Path(schema.__file__).parent
    sources = [*root.glob("formats/**/*.py"), *root.glob("stores/**/*.py"), *root.glob("core/*.py")]
    named = {name for source in sources for name in re.findall(r"\bReason\.([A-Z_]+)", source.read_text())}
    given = LINES.keys() | CONTAINERS.keys() | ODD_POINTS.keys()
    doors = {Reason.CORRUPT_MESSAGE, Reason.OVER_BIGTABLE_LIMIT, Reason.INTERNAL_ERROR}  # test_doors.py
    elsewhere = doors | {Reason.UNKNOWN_NAME}  # a leaf of a tree: test_place_series.py
    assert {Reason[name] for name in named} == given | elsewhere
