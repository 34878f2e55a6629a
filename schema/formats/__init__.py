"""Message formats by name: they turn bytes into points in columns and refused records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timebeam.schema.formats.avro.avro_format import Avro
from timebeam.schema.formats.base import (
    NAN_OPTION,
    Framing,
    Message,
    MessageFormat,
    Nan,
    Parsed,
    Point,
    member,
)
from timebeam.schema.formats.heroic.json_format import HeroicJson
from timebeam.schema.formats.heroic.proto_format import HeroicProto
from timebeam.schema.formats.influx.influx_format import Influx
from timebeam.schema.formats.influx.telegraf_json import TelegrafJson
from timebeam.schema.formats.kairosdb.json_format import KairosDbJson
from timebeam.schema.formats.kairosdb.text_format import KairosDbText
from timebeam.schema.formats.opentsdb.annotation_edits import OpenTsdbAnnotations
from timebeam.schema.formats.opentsdb.histogram_records import OpenTsdbHistogram
from timebeam.schema.formats.opentsdb.json_format import OpenTsdbJson
from timebeam.schema.formats.opentsdb.text_format import OpenTsdbText
from timebeam.schema.formats.otlp.otlp_format import Otlp
from timebeam.schema.formats.parquet.parquet_format import Parquet
from timebeam.schema.formats.prometheus.remote_write import RemoteWrite

AUTO = "auto"
"""In the place of a format: the attributes and the content of each message choose among formats."""

FORMATS: dict[str, type[MessageFormat]] = {
    cls.name: cls
    for cls in (
        *(OpenTsdbJson, OpenTsdbText, OpenTsdbHistogram, OpenTsdbAnnotations, Influx, Avro),
        *(HeroicJson, HeroicProto, KairosDbJson, KairosDbText, Otlp, RemoteWrite, TelegrafJson, Parquet),
    )
}


def message_format(name: str, options: Mapping[str, Any] | None = None) -> MessageFormat:
    """A new instance of the format of that name, with its options by name.

    Raises:
      ValueError: no format has this name, or the value of an option is wrong.
    """
    if name not in FORMATS:
        raise ValueError(f"unknown message format {name!r}: choose one of {', '.join(sorted(FORMATS))}")
    message_format = FORMATS[name].from_options(options or {})
    if nan := (options or {}).get(NAN_OPTION.name):
        message_format.skips_nan = member(Nan, NAN_OPTION.name, nan) is Nan.SKIP
    return message_format


__all__ = ["AUTO", "FORMATS", "Framing", "Message", "MessageFormat", "Parsed", "Point", "message_format"]
