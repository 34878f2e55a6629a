"""Good messages of every format, from which `mutants` makes bad ones."""

from __future__ import annotations

import functools
import io
import json
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.support.inputs import avro_bytes
from tests.support.inputs.prometheus_proto import message, request_1, request_2, snappy
from timebeam.schema.bits.compression import unpack
from timebeam.schema.formats import AUTO, FORMATS, format_class

S = 1_356_998_400
NS = S * 10**9


class Form(NamedTuple):
    """A format with options, and good messages of it.

    Attributes:
      name: of a message format, `auto`, or `records` with the option `encoding`.
    """

    name: str
    options: dict[str, Any]
    samples: tuple[bytes, ...]


def _json(*values: Any) -> bytes:
    return b"\n".join(json.dumps(value, separators=(",", ":")).encode() for value in values)


def _opentsdb(**other: Any) -> dict[str, Any]:
    return {"metric": "sys.cpu", "timestamp": S, "value": 42.5, "tags": {"host": "web01"}} | other


_NUMBERS: dict[str, Any] = {"start_time_unix_nano": NS - 10**9, "time_unix_nano": NS}
_TAGS = [
    {"key": "host", "value": {"string_value": "a"}},
    {"key": "n", "value": {"array_value": {"values": [{"int_value": 7}, {"double_value": 0.5}]}}},
    {"key": "k", "value": {"kvlist_value": {"values": [{"key": "b", "value": {"bool_value": True}}]}}},
]
_OTLP = [
    {"name": "g", "gauge": {"data_points": [_NUMBERS | {"as_double": 1.5, "attributes": _TAGS}] * 2}},
    {
        "name": "s",
        "sum": {
            "aggregation_temporality": 2,
            "is_monotonic": True,
            "data_points": [_NUMBERS | {"as_int": 9}],
        },
    },
    {
        "name": "h",
        "histogram": {
            "aggregation_temporality": 2,
            "data_points": [
                _NUMBERS
                | {"count": 6, "sum": 9.5, "bucket_counts": [1, 2, 3], "explicit_bounds": [1, 2], "max": 4}
            ],
        },
    },
    {
        "name": "e",
        "exponential_histogram": {
            "aggregation_temporality": 2,
            "data_points": [
                _NUMBERS
                | {
                    "count": 6,
                    "sum": 9.5,
                    "scale": 1,
                    "zero_count": 1,
                    "positive": {"offset": -1, "bucket_counts": [1, 4]},
                }
            ],
        },
    },
    {
        "name": "q",
        "summary": {
            "data_points": [
                _NUMBERS | {"count": 2, "sum": 3.0, "quantile_values": [{"quantile": 0.5, "value": 2}]}
            ]
        },
    },
]


def _otlp() -> tuple[bytes, ...]:
    """A request as protobuf and as JSON."""
    of_scope = {"scope": {"name": "lib", "version": "1"}, "metrics": _OTLP}
    resource = {"attributes": [{"key": "service.name", "value": {"string_value": "shop"}}]}
    whole = {"resource_metrics": [{"resource": resource, "scope_metrics": [of_scope]}]}
    request = json_format.ParseDict(whole, ExportMetricsServiceRequest())
    text = json_format.MessageToJson(request, indent=None)
    return bytes(request.SerializeToString()), text.encode()


def _histograms(name: str) -> bytes:
    """A request of remote write with native histograms, of integers and of floats."""
    request = message(name)()
    series = request.timeseries.add()
    if name.startswith("v2."):
        request.symbols.extend(["", "__name__", "h", "host", "a"])
        series.labels_refs.extend([1, 2, 3, 4])
    else:
        series.labels.add(name="__name__", value="h")
        series.labels.add(name="host", value="a")
    for is_float in (False, True):
        histogram = series.histograms.add(sum=7.5, schema=2, zero_threshold=1e-9, timestamp=S * 1000)
        histogram.positive_spans.add(offset=-1, length=2)
        histogram.negative_spans.add(offset=0, length=1)
        if is_float:
            histogram.count_float, histogram.zero_count_float = 6.0, 1.0
            histogram.positive_counts.extend([1.0, 3.0])
            histogram.negative_counts.extend([1.0])
        else:
            histogram.count_int, histogram.zero_count_int = 6, 1
            histogram.positive_deltas.extend([1, 2])
            histogram.negative_deltas.extend([1])
    return bytes(request.SerializeToString())


def _heroic_proto() -> bytes:
    """A batch of two metrics."""
    metric = unpack("snappy", format_class("heroic-proto").example)
    return snappy(metric + metric.replace(b"system", b"kernel"))


_SERIES = [
    ({"__name__": "cpu", "host": host, "le": "0.5"}, [(1.5, S * 1000), (2.0, S * 1000 + 5)]) for host in "ab"
]


def _parquet() -> tuple[bytes, ...]:
    """Rows as a Parquet file, dictionary-encoded and plain."""
    columns = {
        "metric": ["m"] * 4,
        "tag_host": list("aabb"),
        "time": pa.array([S * 1000 + n for n in range(4)], pa.timestamp("ms", "UTC")),
        "kind": ["double"] * 4,
        "int_value": pa.array([None] * 4, pa.int64()),
        "double_value": [1.0, 2.5, 3.0, 4.0],
    }
    files = []
    for options in ({}, {"use_dictionary": False, "compression": "none"}):
        file = io.BytesIO()
        pq.write_table(pa.table(columns), file, **options)
        files.append(file.getvalue())
    return tuple(files)


_RECORDS = _json(
    {"METER": 987654, "TS": 1426489200000, "READING": "12.34"},
    {"METER": 987655, "TS": 1426490100000, "READING": 13},
)
_RECORD_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": n, "type": t} for n, t in (("METER", "long"), ("TS", "long"), ("READING", "string"))
        ],
    }
)


def _avro_records() -> bytes:
    rows = [
        avro_bytes.long(987_654) + avro_bytes.long(1_426_489_200_000 + 900_000 * n) + avro_bytes.text("1.5")
        for n in range(3)
    ]
    return avro_bytes.container(rows[:2], rows[2:], schema=_RECORD_SCHEMA)


@functools.cache
def forms() -> dict[str, Form]:
    """Every format, some of them with several options, by a name."""
    example = {name: format_class(name).example for name in FORMATS}
    avro = [
        avro_bytes.point(S + n, avro_bytes.integer(5) if n % 2 else b"\x02" + bytes(6) + b"\xf0\x3f")
        for n in range(4)
    ]
    remote = (example["prometheus-remote-write"], snappy(request_1(_SERIES)), snappy(request_2(_SERIES)))
    remote += (snappy(_histograms("WriteRequest")), snappy(_histograms("v2.Request")))
    found = {
        "opentsdb-json": Form(
            "opentsdb-json",
            {},
            (
                example["opentsdb-json"],
                _json([_opentsdb(), _opentsdb(value=7, timestamp=S * 1000), _opentsdb(value="1e3")]),
                json.dumps([_opentsdb(metric=f"m{n}") for n in range(3)], indent=1).encode(),
                _json(*[_opentsdb(timestamp=S + n) for n in range(40)]),
            ),
        ),
        "opentsdb-text": Form(
            "opentsdb-text",
            {},
            (
                example["opentsdb-text"],
                b"\n".join(b"put sys.cpu %d %d.5 host=web%d cpu=0" % (S + n, n, n % 3) for n in range(40)),
            ),
        ),
        "opentsdb-histogram": Form(
            "opentsdb-histogram",
            {},
            (
                example["opentsdb-histogram"],
                _json(
                    [
                        {
                            "metric": "h",
                            "timestamp": S,
                            "buckets": {"0,1.75": 12, "1.75,3.5": 16},
                            "underflow": 1,
                            "overflow": 2,
                            "tags": {"host": "a"},
                        }
                    ]
                ),
                b"\n".join([example["opentsdb-histogram"]] * 5),
            ),
        ),
        "opentsdb-annotations": Form(
            "opentsdb-annotations",
            {},
            (
                example["opentsdb-annotations"],
                _json(
                    [
                        {
                            "startTime": S,
                            "endTime": S + 5,
                            "description": "d",
                            "notes": "n",
                            "custom": {"a": "b"},
                        },
                        {"tsuid": "000001000001000001", "startTime": S * 1000 + 5},
                    ]
                ),
                _json({"metric": "m", "tags": {"host": "a"}, "startTime": S, "description": "d"}),
            ),
        ),
        "influx": Form(
            "influx",
            {},
            (
                example["influx"],
                b'cpu\\ x,host=a\\,b,n=1 user=42.5,sys=7i,u=8u,ok=true,text="a \\" b" %d\n' % NS * 3,
                b"\n".join(b"m,h=a%d f=%d,g=1.5 %d" % (n % 4, n, NS + n) for n in range(40)),
            ),
        ),
        "avro": Form("avro", {}, (example["avro"], avro_bytes.container(avro, avro[:2]))),
        "avro as json": Form(
            "avro",
            {"avro_encoding": "json"},
            (_json(_opentsdb(value={"double": 42.5}), _opentsdb(value={"long": 4})),),
        ),
        "avro without a container": Form("avro", {"avro_encoding": "binary"}, tuple(avro)),
        "heroic-json": Form(
            "heroic-json",
            {},
            (
                example["heroic-json"],
                _json(
                    {
                        "series": {"key": "k", "tags": {"host": "a"}, "resource": {"r": "1"}},
                        "data": {"type": "points", "data": [[S * 1000, 1.5], [S * 1000 + 5, 2]]},
                    },
                    *(
                        {
                            "series": {"key": key, "tags": {"host": "a"}, "resource": {}},
                            "data": {"type": "points", "data": [[S * 1000, 1.5]]},
                        }
                        for key in "kl"
                    ),
                ),
            ),
        ),
        "heroic-proto": Form("heroic-proto", {}, (example["heroic-proto"], _heroic_proto())),
        "kairosdb-json": Form(
            "kairosdb-json",
            {},
            (
                example["kairosdb-json"],
                _json(
                    [
                        {"name": "m", "timestamp": S * 1000, "value": 5, "tags": {"h": "a"}, "ttl": 60},
                        {
                            "name": "m",
                            "tags": {"h": "a"},
                            "datapoints": [[S * 1000 + n, n, "long"] for n in range(9)],
                        },
                    ]
                ),
            ),
        ),
        "kairosdb-text": Form(
            "kairosdb-text",
            {},
            (
                example["kairosdb-text"],
                b"\n".join(b"putm sys.cpu %d %d host=web%d" % (S * 1000 + n, n, n % 3) for n in range(40)),
            ),
        ),
        "otlp": Form("otlp", {"otlp_scope": True}, (example["otlp"], *_otlp())),
        "otlp, histograms as such": Form("otlp", {"otlp_histogram": "opentsdb"}, _otlp()),
        "prometheus-remote-write": Form("prometheus-remote-write", {}, remote),
        "telegraf-json": Form(
            "telegraf-json",
            {},
            (
                example["telegraf-json"],
                _json(
                    {
                        "metrics": [
                            {
                                "fields": {"a": 1, "b": 2.5, "c": True, "d": "x"},
                                "name": "cpu",
                                "tags": {"host": "a"},
                                "timestamp": S,
                            }
                        ]
                        * 3
                    }
                ),
            ),
        ),
        "parquet": Form("parquet", {}, (example["parquet"], *_parquet())),
        "records as json": Form("records", {"encoding": "json"}, (_RECORDS,)),
        "records as csv": Form(
            "records",
            {"encoding": "csv"},
            (b'METER,TS,READING\n987654,1426489200000,12.34\n987655,1426490100000,"13.5"\n',),
        ),
        "records as avro": Form("records", {"encoding": "avro"}, (_avro_records(),)),
    }
    every = tuple(sample for form in found.values() if form.name in FORMATS for sample in form.samples)
    return {**found, AUTO: Form(AUTO, {}, every)}
