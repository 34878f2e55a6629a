"""Facts of OpenTSDB's own unit tests about numbers, qualifiers, keys and single points."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.golden.cases import HERE, units
from tests.schema.stores.opentsdb.unit_vectors import APPLIED, ELSEWHERE, NOT_APPLIED, unhex, vectors
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import Series
from timebeam.schema.formats.base import Message
from timebeam.schema.formats.opentsdb.put_points import OpenTsdbJson, parse_value
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.columns.decode_row import repaired
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.uids import uid_table

Facts = dict[str, Any]


def test_every_vector_is_accounted_for() -> None:
    every = json.loads((HERE / "units.json").read_text())["vectors"]
    assert {vector["op"] for vector in every} == APPLIED.keys() | ELSEWHERE.keys()
    assert {vector["id"] for vector in every if vector["op"] in APPLIED} >= NOT_APPLIED.keys()
    assert {op: len(vectors(op)) for op in APPLIED} == APPLIED
    assert sum(APPLIED.values()) + len(NOT_APPLIED) == sum(len(units(op)) for op in APPLIED)
    assert sum(APPLIED.values()) == 200


def offset_in_row(timestamp: int) -> tuple[np.ndarray, np.ndarray]:
    """Offset in ms from the base time, and whether the timestamp is in ms; one element each."""
    in_ms = timestamp >= 1 << 32
    ms = timestamp if in_ms else timestamp * 1000
    return np.array([ms % 3_600_000]), np.array([in_ms])


@pytest.mark.parametrize(("given", "expect"), vectors("build_qualifier"))
def test_build_qualifier(given: Facts, expect: Facts) -> None:
    codes = el.qualifier_codes(*offset_in_row(given["timestamp"]), np.array([given["flags"]], np.uint32))
    assert el.qualifier_bytes(codes)[0] == unhex(expect["qualifier_hex"])


def elements_at(given: Facts) -> el.Elements:
    """The elements whose qualifiers start at the offset that is asked for."""
    codes = el.split_qualifiers(unhex(given["qualifier_hex"])[given.get("offset", 0) :])
    return el.Elements(codes, np.zeros(len(codes), np.uint64))


@pytest.mark.parametrize(("given", "expect"), vectors("value_length", errors=False))
def test_value_length(given: Facts, expect: Facts) -> None:
    assert elements_at(given).widths.tolist() == [expect["length"]]


@pytest.mark.parametrize(("given", "expect"), vectors("qualifier_length", errors=False))
def test_qualifier_length(given: Facts, expect: Facts) -> None:
    assert len(el.qualifier_bytes(elements_at(given).codes)[0]) == expect["length"]


@pytest.mark.parametrize(
    ("given", "expect"), vectors("value_length", errors=True) + vectors("qualifier_length", errors=True)
)
def test_qualifiers_that_are_none(given: Facts, expect: Facts) -> None:
    with pytest.raises(el.CorruptError):
        elements_at(given)


@pytest.mark.parametrize(("given", "expect"), vectors("offset_ms"))
def test_offset_ms(given: Facts, expect: Facts) -> None:
    assert elements_at(given).offsets_ms[0] == expect["offset_ms"]


@pytest.mark.parametrize(("given", "expect"), vectors("flags_from_qualifier"))
def test_flags_from_qualifier(given: Facts, expect: Facts) -> None:
    assert (elements_at(given).codes & 15).tolist() == [expect["flags"]]


@pytest.mark.parametrize(("given", "expect"), vectors("extract_qualifier"))
def test_extract_qualifier(given: Facts, expect: Facts) -> None:
    assert el.qualifier_bytes(elements_at(given).codes[:1])[0] == unhex(expect["qualifier_hex"])


@pytest.mark.parametrize(("given", "expect"), vectors("compare_qualifiers"))
def test_compare_qualifiers(given: Facts, expect: Facts) -> None:
    a, b = (elements_at({"qualifier_hex": given[side]}).offsets_ms[0] for side in ("a_hex", "b_hex"))
    assert np.sign(a - b) == expect["sign"]


@pytest.mark.parametrize(("given", "expect"), vectors("fix_qualifier_flags"))
def test_fix_qualifier_flags(given: Facts, expect: Facts) -> None:
    qualifier, _ = repaired(b"\0" + unhex(given["flags_byte"]), bytes(given["value_length"]))
    assert qualifier == b"\0" + unhex(expect["flags_byte"])


@pytest.mark.parametrize(("given", "expect"), vectors("fix_float_value"))
def test_fix_float_value(given: Facts, expect: Facts) -> None:
    qualifier, value = b"\0" + unhex(given["flags_byte"]), unhex(given["value_hex"])
    if "error" in expect:
        with pytest.raises(el.CorruptError, match="Corrupted floating point value"):
            repaired(qualifier, value)
    else:
        assert repaired(qualifier, value)[1] == unhex(expect["value_hex"])


@pytest.mark.parametrize(("given", "expect"), vectors("max_unsigned"))
def test_max_unsigned(given: Facts, expect: Facts) -> None:
    assert uid_table.last_id(given["width"]) == int(expect["max"])


@pytest.mark.parametrize(("given", "expect"), vectors("vle_encode_long"))
def test_vle_encode_long(given: Facts, expect: Facts) -> None:
    flags, raws = el.integer_elements(np.array([given["value"]], np.int64))
    assert el.value_bytes(el.Elements(flags, raws))[0] == unhex(expect["value_hex"])


def options_of(given: Facts) -> OpenTsdbOptions:
    return OpenTsdbOptions(
        salt_width=given["salt_width"],
        salt_buckets=given.get("salt_buckets", 20),
        uid_width_metric=given.get("metric_width", 3),
    )


@pytest.mark.parametrize(("given", "expect"), vectors("row_key_from_tsuid"))
def test_row_key_from_tsuid(given: Facts, expect: Facts) -> None:
    tsuid = unhex(given["tsuid_hex"])
    pairs = [(tsuid[at : at + 3], tsuid[at + 3 : at + 6]) for at in range(3, len(tsuid), 6)]
    series = keys.series_key(options_of(given), tsuid[:3], pairs)
    base_s = given["timestamp"] - given["timestamp"] % keys.SPAN_S
    assert keys.row_key(series, base_s) == unhex(expect["row_key_hex"])


@pytest.mark.parametrize(("given", "expect"), vectors("salt_bytes"))
def test_salt_bytes(given: Facts, expect: Facts) -> None:
    heads = [
        start[: -len(b"mmm0000")]
        for start, _ in keys.ranges(options_of(given | {"salt_buckets": 21}), b"mmm", 0, 1)
    ]
    assert heads[given["bucket"] if given["salt_width"] else 0] == unhex(expect["salt_hex"])


@pytest.mark.parametrize(("given", "expect"), vectors("prefix_salt"))
def test_prefix_salt(given: Facts, expect: Facts) -> None:
    options = options_of(given)
    unsalted = unhex(given["row_key_hex"])[options.salt_width :]
    metric, tags = unsalted[:3], unsalted[7:]
    assert keys.salt(options, metric, tags) + unsalted == unhex(expect["row_key_hex"])


@pytest.mark.parametrize(("given", "expect"), vectors("tsuid_from_key"))
def test_tsuid_from_key(given: Facts, expect: Facts) -> None:
    key = unhex(given["row_key_hex"])
    if "error" in expect:
        with pytest.raises(ValueError, match="row key"):
            keys.parse_key(options_of(given), key)
    else:
        assert keys.parse_key(options_of(given), key).tsuid == unhex(expect["tsuid_hex"])


@pytest.mark.parametrize(("given", "expect"), vectors("long_to_uid"))
def test_long_to_uid(given: Facts, expect: Facts) -> None:
    assert uid_table.uid_bytes(given["id"], given["width"]) == unhex(expect["uid_hex"])


@pytest.mark.parametrize(("given", "expect"), vectors("uid_width"))
def test_uid_width(given: Facts, expect: Facts) -> None:
    for width in given["widths"]:
        with pytest.raises(ValueError, match="must be from 1 to 8"):
            OpenTsdbOptions(uid_width_metric=width)


@pytest.mark.parametrize(("given", "expect"), vectors("parse_long"))
def test_parse_long(given: Facts, expect: Facts) -> None:
    if "error" in expect:
        with pytest.raises(RejectedError):
            parse_value(given["text"])
    else:
        value = parse_value(given["text"])
        assert (type(value), value) == (int, int(expect["value"]))


@pytest.mark.parametrize(("given", "expect"), vectors("looks_like_integer"))
def test_looks_like_integer(given: Facts, expect: Facts) -> None:
    assert isinstance(parse_value(given["text"]), int) == expect["integer"]


@pytest.mark.parametrize(("given", "expect"), vectors("fits_in_float"))
def test_fits_in_float(given: Facts, expect: Facts) -> None:
    if "error" in expect:
        with pytest.raises(RejectedError):
            parse_value(given["text"])
        return
    bits = np.array([parse_value(given["text"])], np.float64).view(np.int64)
    flags, _ = el.float_elements(bits, exact=True, short=False)
    assert (flags[0] == 0xB) == expect["fits"]


@pytest.mark.parametrize(("given", "expect"), vectors("validate_string"))
def test_validate_string(given: Facts, expect: Facts) -> None:
    error = OpenTsdb().reject(Series.of(given["text"], {"host": "a"}))
    assert error is not None
    assert error.reason is Reason.BAD_METRIC


REASONS = {
    "Metric name was empty": Reason.BAD_METRIC,
    "Invalid timestamp": Reason.BAD_TIMESTAMP,
    "Empty value": Reason.EMPTY_VALUE,
}


@pytest.mark.parametrize(("given", "expect"), vectors("http_put_details"))
def test_http_put_details(given: Facts, expect: Facts) -> None:
    parsed = OpenTsdbJson().parse(Message(given["body"].encode(), 1))
    assert (len(parsed.batch), len(parsed.rejected)) == (expect["success"], expect["failed"])
    assert parsed.rejected[0].reason is REASONS[expect["error"]]
    assert parsed.rejected[0].message.startswith(expect["error"])


@pytest.mark.parametrize(("given", "expect"), vectors("http_put"))
def test_http_put(given: Facts, expect: Facts) -> None:
    parsed = OpenTsdbJson().parse(Message(given["body"].encode(), 1))
    series = Series.of("sys.cpu.user", {"host": "web01"})
    assert list(parsed.batch.points()) == [(series, 1_365_465_600_000, 42)]
    assert not parsed.rejected
