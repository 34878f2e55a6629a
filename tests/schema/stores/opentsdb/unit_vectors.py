"""Which facts of OpenTSDB's own unit tests (tests/golden/opentsdb/units.json) apply here, and which not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.cases import units

NOT_APPLIED = {
    "otsdb-0037": "a negative offset into an array: misuse of the Java method",
    "otsdb-0038": "an offset behind the array: misuse of the Java method",
    "otsdb-0110": "too short a TSUID: no function here takes TSUIDs",
    "otsdb-0111": "an empty TSUID: no function here takes TSUIDs",
    "otsdb-0120": "a negative salt bucket: none is ever computed",
    "otsdb-0221": "a plain point handed to the Java class of appends",
    "otsdb-0222": "a plain point handed to the Java class of appends",
    "otsdb-0223": "an annotation handed to the Java class of appends",
    "otsdb-0266": "an annotation without a time: rejected where it is parsed",
    "otsdb-0507": "a metric without UID: a matter of the pipeline that assigns UIDs",
}
"""Vectors of applied operations that say nothing about this project, and why."""

APPLIED = {
    "build_qualifier": 22,
    "value_length": 7,
    "qualifier_length": 4,
    "offset_ms": 4,
    "flags_from_qualifier": 1,
    "extract_qualifier": 2,
    "compare_qualifiers": 11,
    "fix_qualifier_flags": 1,
    "fix_float_value": 2,
    "max_unsigned": 6,
    "vle_encode_long": 8,
    "extract_data_points": 7,
    "row_key_from_tsuid": 5,
    "salt_bytes": 3,
    "prefix_salt": 14,
    "tsuid_from_key": 7,
    "long_to_uid": 1,
    "uid_width": 1,
    "compact_row": 33,
    "append_parse": 9,
    "add_point": 13,
    "add_point_sequence": 7,
    "annotation_key": 5,
    "parse_long": 13,
    "looks_like_integer": 3,
    "fits_in_float": 5,
    "validate_string": 1,
    "http_put_details": 3,
    "http_put": 2,
}
"""How many vectors of each operation are applied."""

ELSEWHERE = {
    "uid_to_string": "hexadecimal text of a UID: Python's own",
    "string_to_uid": "hexadecimal text of a UID: Python's own",
    "uid_assign": "the pipelines' part of UIDs",
    "get_id": "the pipelines' part of UIDs",
    "rollup_base_time": "rollup tables",
    "rollup_qualifier": "rollup tables",
    "rollup_header_byte": "rollup tables",
    "rollup_interval": "rollup tables",
    "add_aggregate_point": "rollup tables",
    "parse_with_metric_map": "queries",
    "parse_with_metric_list": "queries",
    "parse_metric_and_filters": "queries",
    "parse_m_query": "queries",
    "parse_duration": "queries",
    "branch_hash": "trees",
    "branch_id": "trees",
    "add_leaf": "trees",
    "tree_build": "trees",
}
"""Operations that schema's layout and formats do not cover, and what they are about."""


def vectors(operation: str, *, errors: bool | None = None) -> list[Any]:
    """The applied vectors of an operation as test parameters; only those that expect errors, or do not."""
    assert operation in APPLIED
    return [
        pytest.param(vector["input"], vector["expect"], id=vector["id"])
        for vector in units(operation)
        if vector["id"] not in NOT_APPLIED and errors in (None, "error" in vector["expect"])
    ]


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)
