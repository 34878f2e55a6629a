"""Names that OpenTSDB does not allow: rejected, escaped as by Prometheus' own adapter, or replaced; and tags
beyond its limit."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import Names, OpenTsdbOptions


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
    return OpenTsdb(OpenTsdbOptions.of({"names": names}))


SERIES = Series.of("node:cpu", {"a b": "x=y"})


def test_layouts_store_names_in_their_form() -> None:
    assert isinstance(layout(None).reject(SERIES), RejectedError)
    assert layout("escape").reject(SERIES) is None
    stored = [Name("metrics", "node_.cpu"), Name("tagk", "a_20b"), Name("tagv", "x_3Dy")]
    assert layout("escape").uids.names(SERIES) == stored
    uids = {name: bytes([0, 0, number + 1]) for number, name in enumerate(stored)}
    assert layout("escape").series_key(SERIES, uids).head == bytes([0, 0, 1])
    assert layout("escape").uids.replaced(SERIES) == ()
    assert layout("replace").uids.replaced(SERIES)[0] == (Name("metrics", "node_cpu"), "node:cpu")


def test_an_empty_name_stays_rejected() -> None:
    for names in Names:
        rejection = layout(names.value).reject(Series.of("m", {"a": ""}))
        assert rejection is not None
        assert rejection.reason is Reason.BAD_TAG


def test_tag_names_that_become_equal_are_rejected() -> None:
    series = Series.of("m", {"a:b": "1", "a_b": "2"})
    rejection = layout("replace").reject(series)
    assert rejection is not None
    assert rejection.reason is Reason.DUPLICATE_TAG
    assert layout("escape").reject(series) is None


def limited(**options: object) -> OpenTsdb:
    return OpenTsdb(OpenTsdbOptions.of({"overflow_tag": "rest", "max_tags": 3, **options}))


def stored(layout: OpenTsdb, **tags: str) -> dict[str, str]:
    """The tags that a series is stored with."""
    series = Series.of("m", tags)
    assert layout.reject(series) is None
    texts = [name.text for name in layout.uids.names(series)[1:]]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def hashed(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def test_series_beyond_the_limit_lose_tags_and_get_their_hash() -> None:
    tags = {"a": "1", "b": "2", "c": "3", "d": "é"}
    of_c_and_d = hashed(b'[["c", "3"], ["d", "\\u00e9"]]')
    assert stored(limited(drop_tags="d,c,x"), **tags) == {"a": "1", "b": "2", "rest": of_c_and_d}
    assert stored(limited(keep_tags="a,b"), **tags) == {"a": "1", "b": "2", "rest": of_c_and_d}
    assert stored(limited(drop_tags="a"), a="1", b="2", c="3") == {"a": "1", "b": "2", "c": "3"}
    own = hashed(b'[["d", "4"], ["rest", "mine"]]')
    assert stored(limited(drop_tags="d"), a="1", b="2", d="4", rest="mine") == {
        "a": "1",
        "b": "2",
        "rest": own,
    }


def test_series_that_stay_beyond_the_limit_are_rejected() -> None:
    rejection = limited(drop_tags="a").reject(Series.of("m", dict.fromkeys("abcde", "v")))
    assert rejection is not None
    assert rejection.reason is Reason.TOO_MANY_TAGS


_TAGS = st.dictionaries(st.sampled_from("abcdef"), st.text('",[]\\é1', max_size=3), min_size=4, max_size=6)


@given(st.lists(_TAGS, min_size=2, max_size=6), st.sampled_from(["drop_tags", "keep_tags"]))
def test_different_series_stay_different(all_tags: list[dict[str, str]], option: str) -> None:
    overflow = limited(**{option: "a,b,c"}).options.overflow
    assert overflow is not None
    series = {Series.of("m", tags) for tags in all_tags}
    assert len({overflow.reduced(each) for each in series}) == len(series)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"overflow_tag": "", "drop_tags": "a"}, "give overflow_tag"),
        ({"overflow_tag": None, "keep_tags": "a"}, "give overflow_tag"),
        ({}, "either drop_tags or keep_tags"),
        ({"drop_tags": "a", "keep_tags": "b"}, "either drop_tags or keep_tags"),
        ({"drop_tags": "a,rest"}, "must not be in"),
    ],
)
def test_options_of_tags_that_make_no_sense(options: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        limited(**options)
