"""`timebeam.stores` and `timebeam.formats`: constructed by keyword, decode, and what they import."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pickle
import subprocess
import sys

import pytest

from timebeam import stores
from timebeam.schema.stores import make_store
from timebeam.stores import Cell, Heroic, HeroicReadable, KairosDb, OpenTsdb, Row

MODULES = ("timebeam.formats", "timebeam.stores")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_print_what_they_say(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_importing_takes_neither_beam_nor_clients(name: str) -> None:
    program = (
        f"import sys; import {name};"
        "names = 'apache_beam', 'grpc', 'google.api_core', 'google.auth', 'google.cloud.bigtable';"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", MODULES)
def test_each_name_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(module.__all__, key=lambda each: (each[0].islower(), each))
    classes = [getattr(module, each) for each in module.__all__ if inspect.isclass(getattr(module, each))]
    assert [cls for cls in classes if not cls.__doc__] == []


@pytest.mark.parametrize(
    ("store", "name", "options"),
    [
        (OpenTsdb(salt_width=1, names="escape"), "opentsdb", {"salt_width": 1, "names": "escape"}),
        (Heroic(table_prefix="p-"), "heroic", {"table_prefix": "p-"}),
        (HeroicReadable(resource_names=True), "heroic-readable", {"resource_names": True}),
        (
            KairosDb(retention="7,90", retention_class=7),
            "kairosdb",
            {"retention": "7,90", "retention_class": 7},
        ),
    ],
)
def test_a_class_is_the_store_of_the_commands(
    store: stores.Store, name: str, options: dict[str, object]
) -> None:
    made = make_store(name, options)
    assert (store == made, made == store, hash(store) == hash(made)) == (True, True, True)
    assert store != make_store(name, {**options, "table_prefix": "other-"})
    assert pickle.loads(pickle.dumps(store)) == store
    assert store.tables() == made.tables()


@pytest.mark.parametrize("name", ["OpenTsdb", "Heroic", "HeroicReadable", "KairosDb"])
def test_the_keywords_are_the_options_of_the_store(name: str) -> None:
    """With the same defaults; what only a writer chooses of tags that overflow is left out."""
    cls = getattr(stores, name)
    keywords = {each.name: each.default for each in inspect.signature(cls).parameters.values()}
    assert cls(**keywords) == cls()
    fields = set(type(cls().options).__dataclass_fields__) - {"overflow"}
    assert keywords.keys() == fields


def test_a_wrong_option() -> None:
    with pytest.raises(ValueError, match="salt_width must be from 0 to 8, not 9"):
        OpenTsdb(salt_width=9)


KEY = bytes.fromhex("05 000001 50e22700 000001 000001")
NAMES = {("metrics", b"\0\0\1"): "sys.load", ("tagk", b"\0\0\1"): "host", ("tagv", b"\0\0\1"): "web01"}


def test_a_row_of_opentsdb() -> None:
    row = Row("tsdb", KEY, [Cell("t", b"\x00\x10", 9000, b"\x07")])
    points = OpenTsdb(salt_width=1).decode(row, NAMES)
    assert [(str(series), time_ms, value) for series, time_ms, value in points.points()] == [
        ("sys.load{host=web01}", 1_356_998_401_000, 7)
    ]
    with pytest.raises(ValueError, match=r"row key .* is not salt, metric, base time and tag pairs"):
        OpenTsdb(salt_width=2).decode(row)
    with pytest.raises(ValueError, match=r".+"):
        OpenTsdb(salt_width=1).decode(row._replace(cells=[Cell("t", b"\x00\x1f", 9000, b"\x07")]))


def test_rows_of_the_others() -> None:
    key = bytes.fromhex("637075000000012e79039000000b6b6169726f735f6c6f6e67686f73743d613a")
    points = KairosDb(row_spec="milliseconds").decode(
        Row("data_points", key, [Cell("d", bytes.fromhex("35063800"), 9000, b"\x54")])
    )
    assert [(str(series), time_ms, value) for series, time_ms, value in points.points()] == [
        ("cpu{host=a}", 1_300_000_000_000, 42)
    ]
    with pytest.raises(ValueError, match=r".+"):
        Heroic().decode(Row("metrics", b"\xff", []))
