"""What a real TSD stored as rollups (tests/golden/opentsdb) against what is encoded and decoded here."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.schema.rollup.rollup_cases import RollupCase, Sent, rollup_cases
from tests.schema.rollup.rollup_points import rows_of
from tests.schema.stores.plain_opentsdb import number
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rows import Cell
from timebeam.schema.rollup.accumulate import accumulate
from timebeam.schema.stores.opentsdb.columns.decode_row import read_row
from timebeam.schema.stores.opentsdb.keys import parse_key, row_key
from timebeam.schema.stores.opentsdb.rollup_tables import Form, decode_rollups, encode_points, encode_rollups

CASES = rollup_cases()


def interval_of(case: RollupCase, sent: Sent):
    return next(interval for interval in case.config.intervals if interval.interval == sent.interval)


def encoded(case: RollupCase, sent: Sent) -> list[tuple[str, bytes, bytes, bytes]]:
    """The cells of one point, as the only one of its interval: its value is what `last` makes of it."""
    batch = PointBatch.of([(sent.series, sent.time_s * 1000, False, sent.value)], 1)
    if sent.interval is None:
        interval = case.config.default
        result = encode_points(accumulate(batch, interval.seconds), "last", Form.FEWEST)
    else:
        interval = interval_of(case, sent)
        stored = {case.config.aggregation_ids[sent.aggregator.lower()]: "last"}
        result = encode_rollups(accumulate(batch, interval.seconds), interval, stored, Form.FEWEST)
    assert result.rejected == []
    (row,) = rows_of(result)
    if sent.group_by is None:
        table, series = interval.table, case.config.rollup_series(sent.series)
    else:
        table = interval.pre_aggregation_table
        series = case.config.group_series(sent.series, sent.group_by)
    key = row_key(case.layout.series_key(series, case.uids), row.base_s)
    return [(table, key, cell.qualifier, cell.value) for cell in row.cells]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_rollups_become_the_cells_of_a_tsd(case: RollupCase) -> None:
    stored = {}
    for sent in case.sent:
        for table, key, qualifier, value in encoded(case, sent):
            stored[table, key, qualifier] = value
    expected = {cell[:3]: cell[3] for cell in case.cells if cell[0] != "tsdb"}
    assert stored == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_cells_of_a_tsd_are_read_as_the_rollups_sent(case: RollupCase) -> None:
    rows = defaultdict(list)
    for table, key, qualifier, value in case.cells:
        rows[table, key].append(Cell("t", qualifier, 1, value))
    texts = {(name.kind, uid): name.text for name, uid in case.uids.items()}
    found = {}
    for (table, key), cells in rows.items():
        parts = parse_key(case.layout.options, key)
        tags = {texts["tagk", k]: texts["tagv", v] for k, v in parts.tags}
        group_by = tags.pop("_aggregate", None)
        for interval in case.config.intervals:
            at = (interval.interval, texts["metrics", parts.metric], tuple(sorted(tags.items())), group_by)
            if table == case.config.default.pre_aggregation_table and interval.is_default:
                content = read_row(cells)
                bits, kinds, _ = content.elements.values()
                batch = batch_of(kinds, bits)
                for offset, value in zip(content.elements.offsets_ms.tolist(), batch, strict=True):
                    found[(*at, None, parts.base_s + offset // 1000)] = value
            elif table in (interval.table, interval.pre_aggregation_table) and not interval.is_default:
                decoded = decode_rollups(cells, parts.base_s, interval, case.config.aggregation_ids)
                assert decoded.corruption == []
                names = {number: name for name, number in case.config.aggregation_ids.items()}
                values = batch_of(decoded.kinds, decoded.bits)
                for one, start, value in zip(
                    decoded.ids.tolist(), decoded.starts_s.tolist(), values, strict=True
                ):
                    found[(*at, names[one], start)] = value
    expected = {}
    for sent in case.sent:
        length = case.config.default.seconds if sent.interval is None else interval_of(case, sent).seconds
        at = (
            sent.interval or case.config.default.interval,
            sent.series.metric,
            sent.series.tags,
            sent.group_by.upper() if sent.group_by else None,
            sent.aggregator.lower() if sent.interval else None,
            sent.time_s - sent.time_s % length,
        )
        expected[at] = number(sent.value)
    assert found == expected


def batch_of(kinds, bits) -> list:
    """Kinds and bits as plain numbers."""
    none = bits[:0]
    batch = PointBatch((), none, none, none.astype(bool), kinds, bits, none)
    return [number(batch.value(i)) for i in range(len(bits))]


def test_every_case_is_met() -> None:
    assert len(CASES) == 38
    assert sum(len(case.sent) for case in CASES) == 86  # what the TSD reported as taken
    rejected = {case.title.split("/")[1]: case.rejected for case in CASES if case.rejected}
    assert rejected == {
        "derived_avg_blocked": 2,
        "no_id_for_aggregator": 3,
        "unknown_interval": 1,
        "ms_refused": 1,
        "given_wrong_aggregate_tag": 1,
    }
