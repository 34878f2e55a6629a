"""Formats and stores of other packages: found by name, loaded when named, never in the place of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import get_args

import pytest

from tests.support.packages import installed as installed
from timebeam.schema.core.plugins import FORMAT_GROUP, STORE_GROUP, PluginError, find_plugin, list_plugins
from timebeam.schema.formats import (
    FORMATS,
    FormatName,
    format_class,
    is_format,
    message_format,
    plugin_options,
)
from timebeam.schema.stores import STORES, StoreName, declared_options, make_store, store_plugin

FORMAT = """
import dataclasses
from timebeam.formats import FormatOptions, RecordFormat, option

@dataclasses.dataclass(frozen=True, slots=True)
class Options(FormatOptions):
    firm_json_scale: int = option("factor of values", 1)
    other: int = option("of another one", 1)

class FirmJson(RecordFormat):
    name, example, options_class = "firm-json", b"m 1356998400 5", Options

    def points(self, record):
        metric, time, value = record.split()
        yield metric.decode(), {"h": "a"}, int(time) * 1000, int(value) * self.options.firm_json_scale
"""
STORE = """
import dataclasses
from timebeam.formats import option
from timebeam.stores import CellStore, StoreOptions

@dataclasses.dataclass(frozen=True, slots=True)
class Options(StoreOptions):
    firm_hours_mark: str = option("between metric and time", "#", stored=True)

class FirmHours(CellStore):
    name, table, options_class = "firm-hours", "points", Options

    def head(self, metric):
        return metric.encode() + self.options.firm_hours_mark.encode()

    def tail(self, tags):
        return ",".join(f"{key}={tags[key]}" for key in sorted(tags)).encode()

    def parse(self, key):
        metric, _, rest = key.partition(self.options.firm_hours_mark.encode())
        tags = dict(pair.split("=") for pair in rest[8:].decode().split(","))
        return metric.decode(), tags, int.from_bytes(rest[:8], "big")
"""

Install = Callable[..., None]


def test_the_names_are_those_of_the_literals() -> None:
    assert get_args(FormatName) == FORMATS
    assert get_args(StoreName) == STORES
    assert [format_class(name).name for name in FORMATS] == list(FORMATS)


def test_a_format_is_imported_when_it_is_named(installed: Install) -> None:
    own = FORMAT.replace("    other: int", "    firm_json_other: int")
    installed("firm", FORMAT_GROUP, "firm-json = firm_formats:FirmJson", firm_formats=own)
    sys.modules.pop("firm_formats", None)
    assert is_format("firm-json")
    assert "firm_formats" not in sys.modules
    batch = message_format("firm-json", {"firm_json_scale": 3, "nan": None}).parse  # options of all formats
    assert "firm_formats" in sys.modules
    from timebeam.schema.formats import Message

    assert batch(Message(b"m 1356998400 5", 1)).batch.value(0) == 15
    options = plugin_options("firm-json")
    assert [option.name for option in options] == ["firm_json_scale", "firm_json_other"]
    assert {option.shown_for for option in options} == {("format", ("firm-json",))}
    assert plugin_options("influx") == ()
    assert "firm-json" not in FORMATS


def test_a_store_is_made_from_its_options(installed: Install) -> None:
    installed("firm", STORE_GROUP, "firm-hours = firm_stores:FirmHours", version="2.1", firm_stores=STORE)
    sys.modules.pop("firm_stores", None)
    plugin = store_plugin("firm-hours")
    assert plugin is not None
    assert (plugin.package, plugin.version) == ("firm", "2.1")
    assert "firm_stores" not in sys.modules
    store = make_store("firm-hours", {"table_prefix": "t-", "firm_hours_mark": "|", "salt_width": 1})
    assert (store.name, store.tables()[0].name) == ("firm-hours", "t-points")
    assert [(each.name, each.stored) for each in declared_options("firm-hours")] == [
        ("firm_hours_mark", True)
    ]
    assert store_plugin("opentsdb") is store_plugin("table") is None


def test_a_name_of_ours_is_never_that_of_another_package(installed: Install) -> None:
    installed("evil", FORMAT_GROUP, "influx = no_such_module:Influx")
    installed("worse", STORE_GROUP, "kairosdb = no_such_module:KairosDb\ntable = no_such_module:Table")
    assert message_format("influx").name == "influx"
    assert make_store("kairosdb", {}).name == "kairosdb"
    assert store_plugin("kairosdb") is store_plugin("table") is None


def test_two_packages_with_one_name_stop(installed: Install) -> None:
    for package in ("one", "two"):
        installed(package, FORMAT_GROUP, "firm-json = firm_formats:FirmJson")
    with pytest.raises(PluginError, match=r"^firm-json is in two packages, one and two: uninstall one$"):
        message_format("firm-json")
    with pytest.raises(PluginError, match="two packages"):
        is_format("firm-json")


@pytest.mark.parametrize(
    ("target", "module", "message"),
    [
        ("gone:Firm", "", "format firm-json of package firm 1.0 cannot be imported: ModuleNotFoundError"),
        ("firm_bad:Gone", "x = 1", "cannot be imported: AttributeError"),
        ("firm_raise:Firm", "raise SystemError('no')", "cannot be imported: SystemError: no"),
        (
            "firm_other:Firm",
            "class Firm: pass",
            "firm_other:Firm is no class that derives from",
        ),
        ("firm_named:FirmJson", FORMAT.replace('"firm-json"', '"other"'), "`name` of firm_named:FirmJson is"),
    ],
)
def test_what_is_wrong_with_a_package(installed: Install, target: str, module: str, message: str) -> None:
    installed(
        "firm", FORMAT_GROUP, f"firm-json = {target}", **{target.partition(":")[0]: module} if module else {}
    )
    with pytest.raises(PluginError) as error:
        message_format("firm-json")
    assert message in str(error.value)


def test_an_option_has_the_name_of_its_format(installed: Install) -> None:
    installed("firm", FORMAT_GROUP, "firm-json = firm_options:FirmJson", firm_options=FORMAT)
    with pytest.raises(PluginError, match=r"^format firm-json declares option other: its name must"):
        plugin_options("firm-json")


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="unknown message format 'no-such': choose one of avro, "):
        message_format("no-such")
    with pytest.raises(ValueError, match="unknown store 'no-such': choose one of opentsdb, "):
        make_store("no-such", {})
    assert find_plugin(FORMAT_GROUP, "no-such") is None


def test_all_packages_are_listed_without_an_import(installed: Install) -> None:
    installed("firm", FORMAT_GROUP, "zz = gone:Z\naa = gone:A")
    assert [each.name for each in list_plugins(FORMAT_GROUP) if each.package == "firm"] == ["aa", "zz"]
