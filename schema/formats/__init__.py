"""Message formats by name: they turn bytes into points in columns and rejected records.

Each is imported when it is asked for: who only needs names or options imports no numpy. To add one: its
module, its lines here, its tests and its page; see CONTRIBUTING. Those of other packages are entry points
(`timebeam.schema.core.plugins`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from timebeam.schema.core.declared_options import Option
from timebeam.schema.core.plugins import FORMAT_GROUP, find_plugin, own_options

if TYPE_CHECKING:  # numpy
    from timebeam.schema.formats.base import Framing, Message, MessageFormat, Parsed

AUTO = "auto"
"""In the place of a format: the attributes and the content of each message choose among formats."""

FormatName = Literal[
    "opentsdb-json",
    "opentsdb-text",
    "opentsdb-histogram",
    "opentsdb-annotations",
    "influx",
    "avro",
    "heroic-json",
    "heroic-proto",
    "kairosdb-json",
    "kairosdb-text",
    "otlp",
    "prometheus-remote-write",
    "telegraf-json",
    "parquet",
]
"""The names of our own formats."""

_CLASSES: dict[FormatName, tuple[str, str]] = {
    "opentsdb-json": ("opentsdb.put_points", "OpenTsdbJson"),
    "opentsdb-text": ("opentsdb.put_points", "OpenTsdbText"),
    "opentsdb-histogram": ("opentsdb.histogram_records", "OpenTsdbHistogram"),
    "opentsdb-annotations": ("opentsdb.annotation_edits", "OpenTsdbAnnotations"),
    "influx": ("influx.influx_format", "Influx"),
    "avro": ("avro.avro_format", "Avro"),
    "heroic-json": ("heroic.json_format", "HeroicJson"),
    "heroic-proto": ("heroic.proto_format", "HeroicProto"),
    "kairosdb-json": ("kairosdb.json_format", "KairosDbJson"),
    "kairosdb-text": ("kairosdb.text_format", "KairosDbText"),
    "otlp": ("otlp.otlp_format", "Otlp"),
    "prometheus-remote-write": ("prometheus.remote_write", "RemoteWrite"),
    "telegraf-json": ("influx.telegraf_json", "TelegrafJson"),
    "parquet": ("parquet.parquet_format", "Parquet"),
}
"""By the name of a format its module and its class."""

FORMATS: tuple[FormatName, ...] = get_args(FormatName)
"""The same as a tuple; formats of other packages are not among them."""


def is_format(name: str) -> bool:
    """Whether a format has this name: one of ours, or of an installed package.

    Raises:
      PluginError: two packages have it.
    """
    return name in FORMATS or find_plugin(FORMAT_GROUP, name) is not None


def format_class(name: str) -> type[MessageFormat]:
    """The class of the format of that name, which is imported only now.

    Raises:
      ValueError: no format has this name.
      PluginError: two packages have it, or it cannot be imported.
    """
    if name in FORMATS:
        module, class_name = _CLASSES[name]
        chosen: type[MessageFormat] = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)
        return chosen
    plugin = find_plugin(FORMAT_GROUP, name)
    if plugin is None:
        raise ValueError(unknown_format(name))
    from timebeam.schema.formats.base import MessageFormat

    return plugin.load(MessageFormat)  # type: ignore[type-abstract]


def unknown_format(name: str) -> str:
    """What is said of a name that no format has."""
    return f"unknown message format {name!r}: choose one of {', '.join(sorted(FORMATS))}"


def plugin_options(name: str) -> tuple[Option, ...]:
    """The options that a format of another package declares; none of ours, which share `FormatOptions`.

    Raises:
      ValueError: see `format_class` and `own_options`.
    """
    if name in FORMATS:
        return ()
    from timebeam.schema.formats.options import FormatOptions

    return own_options(name, format_class(name).options_class, FormatOptions, "format")


def message_format(name: str, options: Mapping[str, Any] | None = None) -> MessageFormat:
    """A new instance of the format of that name, with its options by name.

    Raises:
      ValueError: no format has this name, or the value of an option is wrong; see `format_class`.
    """
    chosen = format_class(name)
    return chosen(chosen.options_class.of(options or {}))


__all__ = [
    "AUTO",
    "FORMATS",
    "Framing",
    "Message",
    "MessageFormat",
    "Parsed",
    "ParsedPoint",
    "message_format",
]


def __getattr__(name: str) -> Any:
    """A name of `base`, imported when it is first used: the names and options of formats alone are quick."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.base"), name)
