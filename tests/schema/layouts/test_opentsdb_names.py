"""Names that OpenTSDB does not allow: refused, escaped as by Prometheus' own adapter, or replaced."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.schema.layouts.opentsdb.names import Names
from timebeam.schema.layouts.writing import Name
from timebeam.schema.points import Reason, RefusedError, Series


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        # Vectors of storage/remote/opentsdb/client_test.go and tagvalue.go of prometheus/prometheus.
        ("foo:bar", "foo_.bar"),
        ("foo_bar", "foo__bar"),
        ("foo-bar-42", "foo-bar-42"),
        ("foo-bar/baz", "foo-bar/baz"),
        ("foo-bar=baz", "foo-bar_3Dbaz"),
        ("http://example.org:8080", "http_.//example.org_.8080"),
        ("a b{c}", "a_20b_7Bc_7D"),
        ("é", "_C3_A9"),
        ("\n", "_0A"),
    ],
)
def test_escaped_names(name: str, stored: str) -> None:
    assert Names.ESCAPE.stored(name) == stored
    assert Names.ESCAPE.shown(stored) == name


@given(st.text(st.characters(codec="utf-8"), max_size=12))
def test_escaping_can_be_undone(name: str) -> None:
    stored = Names.ESCAPE.stored(name)
    assert re.fullmatch(r"[a-zA-Z0-9\-_./]*", stored)
    assert Names.ESCAPE.shown(stored) == name


@given(st.text("_.:aAF0é", max_size=8))
def test_a_name_that_no_escaping_gives_is_itself(stored: str) -> None:
    name = Names.ESCAPE.shown(stored)
    assert name == stored or Names.ESCAPE.stored(name) == stored


def test_other_forms() -> None:
    assert Names.REFUSE.stored("a:b") == Names.REFUSE.shown("a:b") == "a:b"
    assert Names.REPLACE.stored("a:b c") == "a_b_c"
    assert Names.REPLACE.shown("disk_ab") == Names.REFUSE.shown("disk_ab") == "disk_ab"


def layout(names: str | None) -> OpenTsdb:
    return OpenTsdb.from_options({"names": names})


SERIES = Series.of("node:cpu", {"a b": "x=y"})


def test_layouts_store_names_in_their_form() -> None:
    assert isinstance(layout(None).refuse(SERIES), RefusedError)
    assert layout("escape").refuse(SERIES) is None
    stored = [Name("metrics", "node_.cpu"), Name("tagk", "a_20b"), Name("tagv", "x_3Dy")]
    assert layout("escape").names(SERIES) == stored
    uids = {name: bytes([0, 0, number + 1]) for number, name in enumerate(stored)}
    assert layout("escape").series_key(SERIES, uids).head == bytes([0, 0, 1])
    assert layout("escape").replaced_names(SERIES) == ()
    assert layout("replace").replaced_names(SERIES)[0] == (Name("metrics", "node_cpu"), "node:cpu")


def test_an_empty_name_stays_refused() -> None:
    for names in Names:
        refusal = layout(names.value).refuse(Series.of("m", {"a": ""}))
        assert refusal is not None
        assert refusal.reason is Reason.BAD_TAG


def test_tag_names_that_become_equal_are_refused() -> None:
    series = Series.of("m", {"a:b": "1", "a_b": "2"})
    refusal = layout("replace").refuse(series)
    assert refusal is not None
    assert refusal.reason is Reason.DUPLICATE_TAG
    assert layout("escape").refuse(series) is None
