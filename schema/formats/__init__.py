"""Message formats by name: they turn bytes into points in columns and rejected records.

Each is imported when it is asked for: who only needs names or options imports no numpy.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from timebeam.schema.formats.options import FormatOptions

if TYPE_CHECKING:  # numpy
    from timebeam.schema.formats.base import Framing, Message, MessageFormat, Parsed, Point

AUTO = "auto"
"""In the place of a format: the attributes and the content of each message choose among formats."""

_CLASSES = {
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

FORMATS = tuple(_CLASSES)
"""The names of the formats."""


def format_class(name: str) -> type[MessageFormat]:
    """The class of the format of that name."""
    module, class_name = _CLASSES[name]
    chosen: type[MessageFormat] = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)
    return chosen


def message_format(name: str, options: Mapping[str, Any] | None = None) -> MessageFormat:
    """A new instance of the format of that name, with its options by name.

    Raises:
      ValueError: no format has this name, or the value of an option is wrong.
    """
    if name not in _CLASSES:
        raise ValueError(f"unknown message format {name!r}: choose one of {', '.join(sorted(FORMATS))}")
    return format_class(name)(FormatOptions.of(options or {}))


__all__ = ["AUTO", "FORMATS", "Framing", "Message", "MessageFormat", "Parsed", "Point", "message_format"]


def __getattr__(name: str) -> Any:
    """A name of `base`, imported when it is first used: the names and options of formats alone are quick."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.base"), name)
