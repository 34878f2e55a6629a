"""The options of message formats, and what their values mean; imports no reader of a format.

Records of named fields have theirs here too: how they are written, and which field holds what of a point.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import NamedTuple

from timebeam.schema.core.declared_options import DeclaredOptions, OptionKind, option


class RecordEncoding(enum.StrEnum):
    """How records of named fields are written."""

    JSON = "json"
    CSV = "csv"
    AVRO = "avro"


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

    REJECT = "reject"
    NUMBER = "number"


class NoTime(enum.StrEnum):
    """What to do with lines without a time."""

    REJECT = "reject"
    PUBLISH = "publish"


class Ttl(enum.StrEnum):
    """What to do with points that have their own lifetime, which Bigtable cannot keep for single points."""

    REJECT = "reject"
    IGNORE = "ignore"


class Nan(enum.StrEnum):
    """What to do with values that are NaN or infinite."""

    SKIP = "skip"
    REJECT = "reject"


OWN_SCHEMAS = ("point", "point_batch")
"""Our own schemas of Avro, by the names of their files."""

PARTS = ("count", "sum", "min", "max", "buckets")
"""What of a histogram of OTLP is a series each."""

OPENTSDB = "opentsdb"
"""The part that is an explicit histogram as a whole, which only layout `opentsdb` stores."""

_PART = "|".join((*PARTS, OPENTSDB))


def _of(*formats: str) -> tuple[str, tuple[str, ...]]:
    """The formats that have an option, as `Option.shown_for`."""
    return "format", formats


@dataclasses.dataclass(frozen=True, slots=True)
class FormatOptions(DeclaredOptions):
    """The options of all message formats; a format reads those that are `shown_for` it.

    Attributes:
      resources: whether the attributes of OTLP's resources stay resources, for Heroic's layouts.
      remembered: the number of cached series, or of what tells a series.
    """

    histogram_id: int = option(
        "opentsdb-histogram, otlp: the id of SimpleHistogramDecoder in tsd.core.histograms.config",
        42,  # as in the configuration that OpenTSDB's documentation gives
        shown_for=_of("opentsdb-histogram", "otlp"),
    )
    influx_metric: str = option(
        "influx, telegraf-json: name of the metric of a field; must contain {field}",
        "{measurement}.{field}",
        regex=r".*\{field\}.*",
        shown_for=_of("influx", "telegraf-json"),
    )
    influx_precision: Precision = option(
        "influx: unit of timestamps; auto recognizes it by the magnitude; finer times are truncated to ms",
        Precision.NANOSECONDS,
        shown_for=_of("influx"),
    )
    influx_no_time: NoTime = option(
        "influx: reject lines without a time, or store them with the publish time of their message; "
        "lines of files are rejected",
        NoTime.REJECT,
        shown_for=_of("influx"),
    )
    influx_booleans: Booleans = option(
        "influx, telegraf-json: store true and false as 1 and 0, or reject boolean fields",
        Booleans.NUMBER,
        shown_for=_of("influx", "telegraf-json"),
    )
    avro_encoding: AvroEncoding = option(
        "avro: object containers, or records of --avro-schema: as JSON, one per line, or "
        "binary (messages only)",
        AvroEncoding.CONTAINER,
        shown_for=_of("avro"),
    )
    avro_schema: str = option(
        "avro: schema of JSON and binary records: point (default), point_batch, or a file",
        "",
        unset=None,
        kind=OptionKind.FILE,
        choices=OWN_SCHEMAS,
        example="point_batch",
        shown_for=_of("avro"),
    )
    avro_fields: str = option(
        "avro: fields of other schemas: metric=FIELD,timestamp=FIELD,value=FIELD,tags=FIELD; "
        "also tag:KEY=FIELD for one tag, and metric:=TEXT, tag:KEY:=TEXT for the same text "
        "in all records",
        "",
        unset=None,
        regex=r"[^=,]+=[^,]+(,[^=,]+=[^,]+)*",
        example="metric=name,timestamp=at,value=reading,tags=labels",
        shown_for=_of("avro"),
    )
    nan: Nan | None = option(
        "avro, heroic-proto, otlp, parquet, prometheus-remote-write: skip and count points "
        "that are NaN or infinite, or reject them; by default prometheus-remote-write skips "
        "them, and the others reject them",
        None,
        members=Nan,
        shown_for=_of("avro", "heroic-proto", "otlp", "prometheus-remote-write", "parquet"),
    )
    kairosdb_ttl: Ttl = option(
        "kairosdb: reject points that have a ttl, or ignore the ttl",
        Ttl.REJECT,
        shown_for=_of("kairosdb-json", "kairosdb-text"),
    )
    otlp_resource: str = option(
        "otlp: resource attributes that become tags (resources in Heroic's layouts): names, all or none",
        "service.name,service.namespace,service.instance.id,host.name,k8s.pod.name",
        regex=r"[^,\s]+(,[^,\s]+)*",
        shown_for=_of("otlp"),
    )
    otlp_scope: bool = option(
        "otlp: store the name of the scope as tag otel.scope.name", False, shown_for=_of("otlp")
    )
    otlp_delta: str = option(
        "otlp: tag delta sums and delta histograms with otel.temporality=delta, or reject them",
        "tag",
        choices=("tag", "reject"),
        shown_for=_of("otlp"),
    )
    otlp_histogram: str = option(
        "otlp: parts of a histogram to store, each as a series; opentsdb: also store "
        "explicit histograms as histogram columns of layout opentsdb",
        ",".join(PARTS),
        regex=rf"({_PART})(,({_PART}))*",
        shown_for=_of("otlp"),
    )
    telegraf_precision: Precision = option(
        "telegraf-json: unit of timestamps (json_timestamp_units); auto recognizes it by the magnitude",
        Precision.SECONDS,
        shown_for=_of("telegraf-json"),
    )
    parquet_fields: str = option(
        "parquet: the columns of files that timebeam did not write: metric=COLUMN,timestamp=COLUMN,"
        "value=COLUMN,tags=COLUMN; also tag:KEY=COLUMN for one tag, and metric:=TEXT, tag:KEY:=TEXT for "
        "the same text in all rows",
        "",
        unset=None,
        regex=r"[^=,]+=[^,]+(,[^=,]+=[^,]+)*",
        example="metric=name,timestamp=at,value=reading,tag:host=machine",
        shown_for=_of("parquet"),
    )
    resources: bool = False
    remembered: int = 200_000

    def checked_histogram_id(self) -> int:
        """The value of `--histogram-id`.

        Raises:
          ValueError: it is not the value of a byte.
        """
        if not 0 <= self.histogram_id <= 255:
            raise ValueError(f"histogram_id must be from 0 to 255, not {self.histogram_id}")
        return self.histogram_id


DEFAULTS = FormatOptions()


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
