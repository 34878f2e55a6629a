"""The kits of `timebeam.testing`: our own formats and stores pass them, and faulty ones do not."""

from __future__ import annotations

import dataclasses
import doctest
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.any_store import VARIANTS
from tests.support.budget import long_after
from tests.support.inputs.samples import Form, forms
from timebeam import testing
from timebeam.formats import RecordFormat
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion
from timebeam.schema.core.selection import Reader, Selected, Selection
from timebeam.schema.formats import FORMATS, Message, Parsed
from timebeam.schema.stores import make_store
from timebeam.stores import CellStore
from timebeam.testing import check_format, check_store

FORMS = {name: Form(name, {}, ()) for name in FORMATS}
FORMS |= {name: form for name, form in forms().items() if form.name in FORMATS}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("seed", long_after(1, range(8)))
def test_our_formats(name: str, seed: int) -> None:
    form = FORMS[name]
    check_format(form.name, form.samples, form.options, rounds=30 if seed == 0 else 400, seed=seed)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("seed", long_after(1, range(4)))
def test_our_stores(name: str, seed: int) -> None:
    store, options = VARIANTS[name]
    check_store(store, options, rounds=6 if seed == 0 else 100, seed=seed)


def test_a_store_that_is_only_read() -> None:
    check_store("kairosdb", {"row_spec": "seconds"})


def test_the_examples_print_what_they_say() -> None:
    assert doctest.testmod(testing).failed == 0


class Words(RecordFormat):
    """`host metric seconds number`."""

    name = "words"
    example = b"web01 sys.load 1356998400 0.5"

    def points(self, record: bytes) -> Iterator[Any]:
        host, metric, seconds, number = record.decode().split()
        yield metric, {"host": host}, int(seconds) * 1000, float(number)


def test_a_format() -> None:
    check_format(Words, [b"a b 1 2\nc d 3 4", b"a b c"])


class Raises(Words):
    def points(self, record: bytes) -> Iterator[Any]:
        host, metric, seconds, number = record.split()
        yield str(metric), {"host": {}[host] if len(host) > 9 else "a"}, int(seconds) * 1000, float(number)


class Remembers(Words):
    seen: list[str] = []  # noqa: RUF012

    def points(self, record: bytes) -> Iterator[Any]:
        self.seen.append(str(record) * 300)
        return super().points(record)


class ByHistory(Words):
    count = 0

    def points(self, record: bytes) -> Iterator[Any]:
        self.count += 1
        for metric, tags, time_ms, number in super().points(record):
            yield metric, tags, time_ms, number + self.count


class Elsewhere(Words):
    def _parse(self, message: Message) -> Parsed:
        parsed = super()._parse(message)
        return dataclasses.replace(
            parsed, rejected=[dataclasses.replace(each, offset=each.offset + 1) for each in parsed.rejected]
        )


class Loses(Words):
    def _parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        return super()._parse_all(messages[:-1] or messages)


class InColumns(Words):
    def columnar(self, message: Message, starts: Any, ends: Any) -> Any:
        return PointBatch.of([], message.arrival_ms), np.arange(1)


class NotFinite(Words):
    def _point(self, metric: str, tags: Mapping[str, str], time_ms: int, number: int | float) -> Any:
        point = super()._point(metric, tags, time_ms, 1)
        return point._replace(value=number)


class Bloats(Words):
    def points(self, record: bytes) -> Iterator[Any]:
        self.held = bytes(100 << 20)
        return super().points(record)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (type("Influx", (Words,), {"name": "influx"}), "the name influx is one of timebeam's own"),
        (type("Upper", (Words,), {"name": "Words"}), "is not small letters"),
        (type("Empty", (Words,), {"example": b"\n"}), "no point in the example"),
        (type("Bad", (Words,), {"example": b"a b 1 2\nx"}), "the example is rejected"),
        (Raises, "the reader of words failed"),
        (Remembers, "in caches"),
        (ByHistory, "other content is read of"),
        (Elsewhere, "not at its offset"),
        (Loses, "messages together are read in another way"),
        (InColumns, "line by line other content is read of"),
        (NotFinite, "a value is not finite"),
        (Bloats, "bytes of memory for"),
    ],
)
def test_a_faulty_format(form: type[Words], message: str) -> None:
    with pytest.raises(AssertionError) as error:
        check_format(form, [b"web01 sys.load 1356998401 1\nweb02 sys.load x 2", b"a b 1 2\nc d 3 4"])
    assert message in str(error.value)


class Hours(CellStore):
    """`metric # base time tags`."""

    name = "hours"
    table = "points"

    def head(self, metric: str) -> bytes:
        return metric.encode() + b"#"

    def tail(self, tags: Mapping[str, str]) -> bytes:
        return ",".join(f"{key}={tags[key]}" for key in sorted(tags)).encode()

    def parse(self, key: bytes) -> tuple[str, dict[str, str], int]:
        metric, _, rest = key.partition(b"#")
        pairs = rest[8:].decode().split(",") if rest[8:] else []
        return metric.decode(), dict(pair.split("=") for pair in pairs), int.from_bytes(rest[:8], "big")


def test_a_store() -> None:
    check_store(Hours(), rounds=30)


class OneKey(Hours):
    def reject(self, series: Series) -> None:
        return None


class LowestFirst(Hours):
    def base(self, base_ms: int) -> bytes:
        return base_ms.to_bytes(8, "little")

    def parse(self, key: bytes) -> tuple[str, dict[str, str], int]:
        metric, tags, _ = super().parse(key)
        return metric, tags, int.from_bytes(key.partition(b"#")[2][:8], "little")


class Narrows(Hours):
    def write_values(self, kinds: Any, bits: Any) -> Any:
        return super().write_values(kinds, bits & ~0xFF)


class Rejects(Hours):
    def values_stored(self, kinds: Any, bits: Any) -> Any:
        return super().values_stored(kinds, bits) & (bits != 42)


class Misses(Hours):
    def select(self, selection: Selection, reader: Reader) -> Iterator[Any]:
        return iter([*super().select(selection, reader)][1:])


class TakesAll(Hours):
    def select(self, selection: Selection, reader: Reader) -> Iterator[Any]:
        return super().select(dataclasses.replace(selection, tags={}), reader)


class RaisesForCells(Hours):
    def read_values(self, content: Any) -> Any:
        if (content[:, 0] > 4).any():
            raise LookupError("a kind")
        return super().read_values(content)


class KeepsRemoved(Hours):
    def remove(self, selected: Selected, deleted: DeleteRange) -> RowDeletion | None:
        return None


class CutsBehind(Hours):
    def cut_at(self, key: bytes) -> bytes:
        return key + b"\0"


class OtherHours(Hours):
    def hours(self, keys: Any, counts: Any, qualifiers: bytes) -> set[tuple[bytes, int]]:
        return {(metric, hour + 3600) for metric, hour in super().hours(keys, counts, qualifiers)}


class SeesNothing(Hours):
    def audit(self, read: Any) -> Iterator[Any]:
        return iter(())


class ByChance(Hours):
    def series_key(self, series: Series, uids: Any) -> SeriesKey:
        return super().series_key(series, uids)._replace(tail=str(id(series)).encode())


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (type("Table", (Hours,), {"name": "table"}), "the name table is one of timebeam's own"),
        (OneKey, "row key"),
        (LowestFirst, "lacks|order"),
        (Narrows, "not "),
        (Rejects, "is rejected"),
        (Misses, "lacks"),
        (TakesAll, "is not selected by"),
        (RaisesForCells, "a kind"),
        (KeepsRemoved, "points are removed"),
        (CutsBehind, "cut_at is behind a key"),
        (OtherHours, "hours differ"),
        (SeesNothing, "nothing is found"),
        (ByChance, "is rejected"),
    ],
)
def test_a_faulty_store(store: type[Hours], message: str) -> None:
    globals()[store.__name__] = store  # to be pickled
    with pytest.raises((AssertionError, LookupError, ValueError), match=message):
        check_store(store(), rounds=30)


def test_a_name_and_an_instance_are_the_same() -> None:
    check_store(make_store("heroic", {}), rounds=1)
