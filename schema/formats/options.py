"""The options of message formats, and what their values mean; imports no reader of a format.

Records of named fields have theirs here too: how they are written, and which field holds what of a point.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from timebeam.schema.core.declared_options import Option, OptionKind, values_of
from timebeam.schema.formats.base import Framing


class RecordEncoding(enum.StrEnum):
    """How records of named fields are written."""

    JSON = "json"
    CSV = "csv"
    AVRO = "avro"

    @property
    def framing(self) -> Framing:
        """How files are cut."""
        return Framing.AVRO if self is RecordEncoding.AVRO else Framing.LINES


class AvroEncoding(enum.StrEnum):
    """The encoding of a message of Avro."""

    CONTAINER = "container"
    BINARY = "binary"
    JSON = "json"


class Precision(enum.StrEnum):
    """The unit of the timestamps; with AUTO the magnitude of each one tells it."""

    NANOSECONDS = "ns"
    MICROSECONDS = "us"
    MILLISECONDS = "ms"
    SECONDS = "s"
    AUTO = "auto"


class Booleans(enum.StrEnum):
    """What to do with boolean fields."""

    REFUSE = "refuse"
    NUMBER = "number"


class NoTime(enum.StrEnum):
    """What to do with lines without a time."""

    REFUSE = "refuse"
    PUBLISH = "publish"


class Ttl(enum.StrEnum):
    """What to do with points that have their own lifetime, which Bigtable cannot keep for single points."""

    REFUSE = "refuse"
    IGNORE = "ignore"


class Nan(enum.StrEnum):
    """What to do with values that are NaN or infinite."""

    SKIP = "skip"
    REJECT = "reject"


METRIC = "{measurement}.{field}"
"""The default template for the metric of a field."""

OWN_SCHEMAS = ("point", "point_batch")
"""Our own schemas of Avro, by the names of their files."""

RESOURCE_ATTRIBUTES = "service.name,service.namespace,service.instance.id,host.name,k8s.pod.name"
"""The attributes of OTLP's resources that are kept by default."""

PARTS = ("count", "sum", "min", "max", "buckets")
"""What of a histogram of OTLP is a series each."""

OPENTSDB = "opentsdb"
"""The part that is an explicit histogram as a whole, which only layout `opentsdb` stores."""

HISTOGRAM_ID = 42
"""The id of SimpleHistogram in the configuration that OpenTSDB's documentation gives."""

_PART = "|".join((*PARTS, OPENTSDB))

_METRIC = Option(
    "influx_metric",
    "influx, telegraf-json: the metric of a field; must hold {field}",
    default=METRIC,
    regex=r".*\{field\}.*",
)
_BOOLEANS = Option(
    "influx_booleans",
    "influx, telegraf-json: take true and false as the numbers 1 and 0, or refuse boolean fields",
    default=Booleans.NUMBER.value,
    choices=values_of(Booleans),
)
_HISTOGRAM_ID = Option(
    "histogram_id",
    "opentsdb-histogram, otlp: the id of SimpleHistogramDecoder in tsd.core.histograms.config",
    OptionKind.WHOLE,
    HISTOGRAM_ID,
)
_TTL = Option(
    "kairosdb_ttl",
    "kairosdb: refuse points with a ttl of their own, or ignore it and store them as others",
    default=Ttl.REFUSE.value,
    choices=values_of(Ttl),
)
_NAN = Option(
    "nan",
    "avro, heroic-proto, otlp, parquet, prometheus-remote-write: skip and count points that are NaN or "
    "infinite, or refuse them; without it remote write skips them, the others refuse them",
    choices=values_of(Nan),
)

DECLARED_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "opentsdb-histogram": (_HISTOGRAM_ID,),
    "influx": (
        _METRIC,
        Option(
            "influx_precision",
            "influx: unit of the timestamps; auto: by their magnitude; digits finer than ms are dropped",
            default=Precision.NANOSECONDS.value,
            choices=values_of(Precision),
        ),
        Option(
            "influx_no_time",
            "influx: refuse lines without a time, or store them with the publish time of their message; "
            "lines of files are refused",
            default=NoTime.REFUSE.value,
            choices=values_of(NoTime),
        ),
        _BOOLEANS,
    ),
    "avro": (
        Option(
            "avro_encoding",
            "avro: object containers, or records of a schema that you name: as JSON, one per line, or "
            "binary, which is for messages and not for files",
            default=AvroEncoding.CONTAINER.value,
            choices=values_of(AvroEncoding),
        ),
        Option(
            "avro_schema",
            "avro: schema of JSON and binary records: point, point_batch, or a file; point if none is given",
            OptionKind.FILE,
            choices=OWN_SCHEMAS,
            example="point_batch",
        ),
        Option(
            "avro_fields",
            "avro: which field holds what, for schemas of your own: "
            "metric=FIELD,timestamp=FIELD,value=FIELD,tags=FIELD; also tag:KEY=FIELD for one tag, "
            "and metric:=TEXT, tag:KEY:=TEXT for the same text in all records",
            regex=r"[^=,]+=[^,]+(,[^=,]+=[^,]+)*",
            example="metric=name,timestamp=at,value=reading,tags=labels",
        ),
        _NAN,
    ),
    "heroic-proto": (_NAN,),
    "kairosdb-json": (_TTL,),
    "kairosdb-text": (_TTL,),
    "otlp": (
        Option(
            "otlp_resource",
            "otlp: resource attributes that become tags (resources in Heroic's layouts): names, all or none",
            default=RESOURCE_ATTRIBUTES,
            regex=r"[^,\s]+(,[^,\s]+)*",
        ),
        Option(
            "otlp_scope", "otlp: store the name of the scope as tag otel.scope.name", OptionKind.FLAG, False
        ),
        Option(
            "otlp_delta",
            "otlp: tag delta sums and delta histograms with otel.temporality=delta, or refuse them",
            default="tag",
            choices=("tag", "refuse"),
        ),
        Option(
            "otlp_histogram",
            "otlp: the parts of a histogram to store, a series each; opentsdb: also explicit histograms as "
            "histogram columns of layout opentsdb",
            default=",".join(PARTS),
            regex=rf"({_PART})(,({_PART}))*",
        ),
        _HISTOGRAM_ID,
        _NAN,
    ),
    "prometheus-remote-write": (_NAN,),
    "telegraf-json": (
        _METRIC,
        _BOOLEANS,
        Option(
            "telegraf_precision",
            "telegraf-json: unit of the timestamps (json_timestamp_units); auto: by their magnitude",
            default=Precision.SECONDS.value,
            choices=values_of(Precision),
        ),
    ),
    "parquet": (
        Option(
            "parquet_fields",
            "parquet: the columns of files that timebeam did not write: metric=COLUMN,timestamp=COLUMN,"
            "value=COLUMN,tags=COLUMN; also tag:KEY=COLUMN for one tag, and metric:=TEXT, tag:KEY:=TEXT for "
            "the same text in all rows",
            regex=r"[^=,]+=[^,]+(,[^=,]+=[^,]+)*",
            example="metric=name,timestamp=at,value=reading,tag:host=machine",
        ),
        _NAN,
    ),
}
"""The options of `MessageFormat.from_options` by the name of a format, for those that have any."""


def checked_histogram_id(options: Mapping[str, Any]) -> int:
    """The value of `--histogram_id`.

    Raises:
      ValueError: it is not the value of a byte.
    """
    number = int(options.get("histogram_id", HISTOGRAM_ID))
    if not 0 <= number <= 255:
        raise ValueError(f"histogram_id must be from 0 to 255, not {number}")
    return number


_ENTRY = re.compile(r"(metric|timestamp|value|tags|tag:[^=:]+)(:?=)(.+)")


class FieldSource(NamedTuple):
    """A field that holds a string, or a constant string."""

    text: str
    constant: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFields:
    """The fields of a record that hold the parts of a point.

    Attributes:
      timestamp, value: fields with a number, or with an array of numbers.
      tags: a field with a map of tags; empty if there is none.
      tag: (tag key, source of its value) for tags with a field of their own.
    """

    metric: FieldSource
    timestamp: str
    value: str
    tags: str
    tag: tuple[tuple[str, FieldSource], ...]

    @classmethod
    def of(cls, text: str, option: str) -> RecordFields:
        """Parses entries such as `metric=name`, `metric:=constant`, `tag:host=field`, separated by commas.

        Args:
          option: the name of the option, for messages.

        Raises:
          ValueError: an entry is malformed, duplicate or missing.
        """
        sources: dict[str, FieldSource] = {}
        for entry in text.split(","):
            match = _ENTRY.fullmatch(entry.strip())
            if not match or (match[2] == ":=" and match[1] in ("timestamp", "value", "tags")):
                raise ValueError(
                    f"{option}: {entry!r} is not one of metric=FIELD, metric:=TEXT, timestamp=FIELD, "
                    "value=FIELD, tags=FIELD, tag:KEY=FIELD, tag:KEY:=TEXT"
                )
            if match[1] in sources:
                raise ValueError(f"{option}: duplicate {match[1]}")
            sources[match[1]] = FieldSource(match[3], match[2] == ":=")
        missing = {"metric", "timestamp", "value"} - sources.keys()
        if missing:
            raise ValueError(f"{option} lacks {', '.join(sorted(missing))}")
        tags = sources.get("tags")
        return cls(
            sources["metric"],
            sources["timestamp"].text,
            sources["value"].text,
            tags.text if tags else "",
            tuple((key[4:], source) for key, source in sources.items() if key.startswith("tag:")),
        )

    def names(self) -> set[str]:
        """The fields that a record must have."""
        field_names = {source.text for _, source in (("", self.metric), *self.tag) if not source.constant}
        return (field_names | {self.timestamp, self.value, self.tags}) - {""}
