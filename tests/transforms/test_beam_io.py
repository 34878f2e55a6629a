"""timebeam.io: any windowing, no point is late or stored twice, rejections keep their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import grpc
import pytest
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.metrics.metric import Lineage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.error_handling import ErrorHandler
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindows,
    NonMergingWindowFn,
    Sessions,
    SlidingWindows,
    TimestampedValue,
    WindowFn,
)
from apache_beam.typehints.schemas import typing_to_runner_api
from apache_beam.utils.timestamp import Timestamp

from tests.support.fault_proxy import MUTATE_ROWS, BadEntries, faulty, nth
from tests.support.stored import Store
from timebeam.io import ParsePoints, Point, ReadPoints, WritePoints
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch, Series
from timebeam.transforms.bigtable.target import Target, as_target
from timebeam.transforms.ingest.point_rows import record_of

T = 1_767_225_600  # a full hour
LATE = 100  # one in so many elements is late
WINDOWS = {"global": GlobalWindows(), "fixed": FixedWindows(60), "sessions": Sessions(30)}


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def writing(store: Store, **options: Any) -> WritePoints:
    return WritePoints(store.target, store.layout, auto_create_metrics=True, **options)


def row(second: int, value: float, host: str = "a") -> Point:
    """A point `second` after T."""
    return Point("m", {"host": host}, (T + second) * 1000, float_value=value)


def pipeline(*, streaming: bool = False) -> beam.Pipeline:
    options = PipelineOptions(["--streaming"] if streaming else [])
    return beam.Pipeline(runner=BundleBasedDirectRunner() if streaming else FnApiRunner(), options=options)


def values(store: Store, host: str = "a") -> dict[int, Any]:
    """Values by seconds after T."""
    points = store.points().get(Series.of("m", {"host": host}), {})
    return {time_ms // 1000 - T: value for time_ms, value in points.items()}


def placed(
    rejected: Any, time: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
) -> tuple[str, int, Any]:
    """(reason, timestamp in s after T, window) of a rejection."""
    return rejected.reason.value, int(time) - T, window


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("packing", ["points", "compacted", "append"])
@pytest.mark.parametrize("windows", WINDOWS)
def test_points_of_any_windowing_are_stored_once_and_rejections_keep_their_place(
    store: Store, windows: str, packing: str, streaming: bool
) -> None:
    rows = [row(second, second / 2) for second in range(300)]
    bad = {17: rows[17]._replace(float_value=None), 250: rows[250]._replace(metric="m m")}
    with pipeline(streaming=streaming) as root:
        timed = [TimestampedValue(bad.get(n, one), T + n) for n, one in enumerate(rows)]
        points = root | beam.Create(timed) | beam.WindowInto(WINDOWS[windows])
        rejected = points | writing(store, packing=packing, flush_seconds=1) | beam.Map(placed)
        window = WINDOWS[windows]
        expected = [
            (reason, second, window.assign(WindowFn.AssignContext(Timestamp(T + second)))[0])
            for reason, second in (("empty-value", 17), ("bad-metric", 250))
        ]
        assert_that(rejected, equal_to(expected))
    assert values(store) == {second: second / 2 for second in range(300) if second not in bad}
    if packing == "append":
        (stored,) = store.rows()
        assert len(stored.cells[0].value) == 298 * (2 + 4)


@pytest.mark.parametrize(
    ("packing", "as_batches"),
    [("compacted", False), ("compacted", True), ("append", False), ("points", False)],
)
@pytest.mark.parametrize("windows", [FixedWindows(60), Sessions(5), GlobalWindows()])
def test_no_late_point_is_lost(store: Store, windows: WindowFn, packing: str, as_batches: bool) -> None:
    """One element in a hundred is an hour behind the watermark; no lateness is allowed."""
    seconds = [3600 + n if n % LATE else n for n in range(1, 1001)]
    timed = [TimestampedValue(row(second, float(second)), T + second) for second in seconds]
    events = test_stream.TestStream().advance_watermark_to(T)
    for start in range(0, 1000, 50):
        events = events.add_elements(timed[start : start + 50])
        events = events.advance_watermark_to(T + 3600 + start + 50).advance_processing_time(5)
    events = events.advance_processing_time(60).advance_watermark_to_infinity()
    with pipeline(streaming=True) as root:
        points = root | events | beam.WindowInto(windows, allowed_lateness=0)
        if as_batches:
            points = points | beam.Map(batch_of).with_output_types(PointBatch)
        rejected = points | writing(store, packing=packing, flush_seconds=5)
        assert_that(rejected, equal_to([]))
    assert values(store) == {second: float(second) for second in seconds}


def batch_of(point: Point) -> PointBatch:
    return PointBatch.of(
        [(Series.of("m", dict(point.tags)), point.time_ms, False, point.float_value or 0.0)], 1
    )


class Twice(NonMergingWindowFn):
    """Two windows for each element."""

    def assign(self, context: Any) -> list[Any]:
        return [*FixedWindows(60).assign(context), *FixedWindows(90).assign(context)]

    def get_window_coder(self) -> Any:
        return FixedWindows(60).get_window_coder()


class ByElement(Twice):
    """Windows that cannot be known before the element."""

    def assign(self, context: Any) -> list[Any]:
        return list(FixedWindows(context.element.period).assign(context))


@pytest.mark.parametrize("windows", [SlidingWindows(60, 10), SlidingWindows(60, 59), Twice(), ByElement()])
def test_several_windows_for_a_point_are_rejected(windows: WindowFn) -> None:
    points = beam.Pipeline() | beam.Create([row(0, 1.0)]) | beam.WindowInto(windows)
    with pytest.raises(ValueError, match=r"several windows.*put WindowInto\(GlobalWindows\(\)\)"):
        points | WritePoints("projects/p/instances/i", "opentsdb")


def test_means_of_sliding_windows_are_stored(store: Store) -> None:
    """In the global window: each is a point of its own. Windows with gaps need nothing."""
    with pipeline() as root:
        seconds = root | beam.Create([float(second) for second in range(120)])
        timed = seconds | beam.Map(lambda second: TimestampedValue(second, T + second)).with_output_types(
            float
        )
        means = (
            timed
            | beam.WindowInto(SlidingWindows(60, 30))
            | beam.CombineGlobally(beam.combiners.MeanCombineFn()).without_defaults()
        )
        points = means | beam.Map(
            lambda mean, window=beam.DoFn.WindowParam: row(int(window.start) - T, mean)
        ).with_output_types(Point)
        assert_that(
            points | "Once" >> beam.WindowInto(GlobalWindows()) | "All" >> writing(store),
            equal_to([]),
            "none",
        )
        gaps = (
            root
            | "Rare" >> beam.Create([row(5, 1.0, "b")])
            | "Gaps" >> beam.WindowInto(SlidingWindows(10, 10))
        )
        assert_that(gaps | "Some" >> writing(store), equal_to([]), "none of them")
    assert values(store) == {-30: 14.5, 0: 29.5, 30: 59.5, 60: 89.5, 90: 104.5}
    assert values(store, "b") == {5: 1.0}


def test_one_error_handler_takes_messages_points_and_rows(store: Store, emulator: str) -> None:
    """In the windows of the input, so that it may group them."""
    good = b'{"metric": "m", "timestamp": %d, "value": 1, "tags": {"host": "a"}}'
    messages = [good % (T + second) for second in range(3)] + [b"{", (good % T).replace(b'"m"', b'"m m"')]
    messages.append(good % (T + 7200))
    base = T + 7200
    plan = nth(
        MUTATE_ROWS,
        range(1, 99),
        BadEntries(grpc.StatusCode.INVALID_ARGUMENT, lambda key: base.to_bytes(4, "big") in key),
    )
    with faulty(emulator, plan), pipeline() as root:
        timed = [TimestampedValue(message, T + 60 * n) for n, message in enumerate(messages)]
        windowed = root | beam.Create(timed) | beam.WindowInto(FixedWindows(60))
        count = beam.Map(lambda rejected: rejected.reason.value) | beam.combiners.Count.PerElement()
        with ErrorHandler(count) as handler:
            points = windowed | ParsePoints("opentsdb-json").with_error_handler(handler)
            points | writing(store).with_error_handler(handler)
        expected = [("bad-syntax", 1), ("bad-metric", 1), ("write-refused", 1)]
        assert_that(handler.output(), equal_to(expected))
    assert values(store) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("windows", [*WINDOWS.values(), SlidingWindows(60, 30)])
def test_messages_are_parsed_in_their_windows(windows: WindowFn, streaming: bool) -> None:
    """In sliding windows in each; of what is rejected the timestamp is that of its message."""
    messages = [b"m,host=a v=%d %d000000000" % (n, T + n) if n % 40 else b"?" for n in range(1, 100)]
    with pipeline(streaming=streaming) as root:
        timed = [TimestampedValue(message, T + n) for n, message in enumerate(messages, 1)]
        points, rejected = root | beam.Create(timed) | beam.WindowInto(windows) | ParsePoints("influx")
        expected = [
            ("bad-syntax", n, window)
            for n in (40, 80)
            for window in windows.assign(WindowFn.AssignContext(Timestamp(T + n)))
        ]
        assert_that(rejected | beam.Map(placed), equal_to(expected))
        times = points | beam.FlatMap(times_in_window)
        everywhere = [
            (T + n, window)
            for n in range(1, 100)
            if n % 40
            for window in windows.assign(WindowFn.AssignContext(Timestamp(T + n)))
        ]
        if not isinstance(windows, Sessions):
            assert_that(times, equal_to(everywhere), "points")


def times_in_window(batch: PointBatch, window: Any = beam.DoFn.WindowParam) -> Iterator[tuple[int, Any]]:
    assert batch.arrivals_ms.tolist() == batch.times_ms.tolist()
    for _, time_ms, _ in batch.points():
        yield time_ms // 1000, window


def test_messages_of_pubsub_have_their_own_arrival_and_format(store: Store) -> None:
    published = Timestamp(T + 5).to_utc_datetime(has_tz=True)
    message = PubsubMessage(
        b"put m %d 3 host=a" % T, {"format": "opentsdb-text"}, message_id="1", publish_time=published
    )
    with pipeline() as root:
        parse = ParsePoints("influx", formats=["opentsdb-text"])
        points, rejected = root | beam.Create([message]) | parse
        assert_that(rejected, equal_to([]), "none")
        assert_that(points | writing(store), equal_to([]), "none of them")
    (stored,) = store.rows()
    assert [cell.timestamp_ms for cell in stored.cells] == [(T + 5) * 1000]


def test_points_come_back_as_rows_with_their_times_and_kinds(store: Store) -> None:
    rows = [row(0, 1.0), Point("m", {"host": "a"}, T * 1000 + 1500, int_value=1), row(3600, -0.25)]
    with pipeline() as root:
        root | beam.Create(rows) | writing(store)
    times = (T * 1000, T * 1000 + 10_000_000)
    with pipeline() as root:
        points, rejected = root | ReadPoints(store.target, store.layout, *times, as_rows=True)
        assert points.element_type is Point
        seconds = points | beam.Map(lambda point, time=beam.DoFn.TimestampParam: (point, time.micros // 1000))
        assert_that(seconds, equal_to([(one, one.time_ms) for one in rows]), "points")
        assert_that(rejected, equal_to([]), "none")
        with ErrorHandler(beam.Map(str)) as handler:
            batches = root | "Batches" >> ReadPoints(
                store.target,
                "opentsdb",
                *times,
                store_options={"table_prefix": store.layout.options.table_prefix},
            ).with_error_handler(handler)
        assert_that(batches | beam.Map(len) | beam.CombineGlobally(sum), equal_to([3]), "batches")


def test_sources_and_sinks_are_reported(store: Store) -> None:
    first, second = pipeline(), pipeline()
    first | beam.Create([row(0, 1.0)]) | writing(store, packing="append")
    second | ReadPoints(store.target, store.layout, 0, 1)
    name = f"bigtable:{store.target.project}.{store.target.instance}.{store.layout.data_table}"
    assert Lineage.query(first.run().metrics(), Lineage.SINK) == {name}
    assert Lineage.query(second.run().metrics(), Lineage.SOURCE) == {name}
    for transform in (writing(store), ReadPoints(store.target, store.layout, 0, 1)):
        shown = {item.key: item.value for item in DisplayData.create_from(transform).items}
        assert (shown["tableId"], shown["store"]) == (store.layout.data_table, "opentsdb")
    (item,) = DisplayData.create_from(ParsePoints("influx")).items
    assert (item.key, item.value) == ("format", "influx")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"metric": None}, Reason.BAD_METRIC),
        ({"tags": {"host": 1}}, Reason.BAD_TAG),
        ({"tags": "host=a"}, Reason.BAD_TAG),
        ({"time_ms": -1}, Reason.BAD_TIMESTAMP),
        ({"time_ms": 0.5}, Reason.BAD_TIMESTAMP),
        ({"time_ms": 1 << 63}, Reason.BAD_TIMESTAMP),
        ({"float_value": None}, Reason.EMPTY_VALUE),
        ({"int_value": 1}, Reason.EMPTY_VALUE),
        ({"float_value": "1"}, Reason.BAD_NUMBER),
        ({"float_value": 10**400}, Reason.NUMBER_OUT_OF_RANGE),
        ({"float_value": None, "int_value": 1 << 63}, Reason.NUMBER_OUT_OF_RANGE),
        ({"float_value": None, "int_value": True}, Reason.NUMBER_OUT_OF_RANGE),
    ],
)
def test_rows_that_are_no_points_are_rejected(fields: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(RejectedError) as caught:
        record_of(row(0, 1.0)._replace(**fields))
    assert caught.value.reason is reason


def test_points_have_a_schema() -> None:
    fields = typing_to_runner_api(Point).row_type.schema.fields
    assert [(field.name, field.type.nullable, field.type.WhichOneof("type_info")) for field in fields] == [
        ("metric", False, "atomic_type"),
        ("tags", False, "map_type"),
        ("time_ms", False, "atomic_type"),
        ("int_value", True, "atomic_type"),
        ("float_value", True, "atomic_type"),
    ]


def test_rows_of_other_types_are_points() -> None:
    """As of Beam YAML: nested rows for tags, and no field for the other kind."""
    series = Series.of("m", {"host": "a"})
    made = beam.Row(metric="m", tags=beam.Row(host="a"), time_ms=1500, int_value=7)
    assert record_of(made) == (series, 1500, True, 7)
    assert record_of(row(0, 1)) == (series, T * 1000, False, 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ParsePoints("nothing"), "unknown"),
        (lambda: ParsePoints("auto"), "needs formats"),
        (lambda: ParsePoints("opentsdb-annotations"), "holds annotations"),
        (lambda: WritePoints("my-project", "opentsdb"), "give projects/"),
        (lambda: WritePoints(Target("p", "i"), "nothing"), "unknown store"),
        (lambda: WritePoints(Target("p", "i"), "heroic-readable", packing="append"), "no packing append"),
        (
            lambda: WritePoints(Target("p", "i"), "opentsdb", store_options={"salt_widht": 1}),
            "store opentsdb has no option salt_widht: it has table_prefix, salt_width",
        ),
        (lambda: ReadPoints(Target("p", "i"), "nothing", 0, 1), "unknown store"),
        (lambda: ReadPoints(Target("p", "i"), "kairosdb", 0, 1, store_options={"x": 1}), "has no option x"),
        (lambda: ReadPoints(Target("p", "i"), "kairosdb", 2, 1), "end_ms 1 is before start_ms 2"),
    ],
)
def test_mistakes_are_errors_before_a_pipeline_runs(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_targets_have_names() -> None:
    assert as_target("projects/p/instances/i") == Target("p", "i")
    assert as_target("projects/p/instances/i/appProfiles/a") == Target("p", "i", "a")
    assert as_target(Target("p", "i")) == Target("p", "i")
