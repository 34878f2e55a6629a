"""Points in any Beam pipeline: parsed from messages, written into a store, read from it (`timebeam.io`).

messages ─► ParsePoints ─► PointBatch ─► WritePoints ─► tables ─► ReadPoints ─► PointBatch or Point
                              ▲
                            Point

They stand on the steps of `timebeam ingest` and `timebeam copy`, and take any windowing in which an element
has one window. `WritePoints` encodes in the windows of its input, so what it rejects there keeps window and
timestamp; the pieces of a row are then grouped in the global window, by processing time, so that no point is
late. A packed row that is rejected comes out in the windowing of the input too, with the time of its
rejection.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.pvalue import PBegin, PCollection, PDone
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.window import GlobalWindows, TimestampedValue
from apache_beam.utils.windowed_value import WindowedValue

from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import AUTO, FormatName, Message, format_class, message_format
from timebeam.schema.stores import StoreName, make_store
from timebeam.transforms.bigtable.beam_steps import WithErrorHandler, displayed
from timebeam.transforms.bigtable.target import Target, as_target
from timebeam.transforms.copy.copied_points import ReadBatches
from timebeam.transforms.flow.in_windows import GatherInWindowsFn, check_one_window, own_times
from timebeam.transforms.flow.steps import REJECTED, register_coders, rejecting
from timebeam.transforms.ingest.point_rows import BatchPointsFn, Point, rows_of
from timebeam.transforms.ingest.points_graph import Flow, PointsGraph, on_arrival
from timebeam.transforms.ingest.row_mutations import data_tables
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.input.parse import GATHERED_MESSAGES, ParseMessagesFn, parsing, pubsub_message
from timebeam.transforms.input.unpack_messages import GATHERED_BYTES
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter


class PointsAndRejected(NamedTuple):
    """The two outputs of a transform without an error handler: points, and what is rejected."""

    points: PCollection[Any]
    rejected: PCollection[Rejected]


class RejectedRow(NamedTuple):
    """What is rejected, as a row with a schema, for Beam YAML: the reason code, why, and the input."""

    reason: str
    message: str
    payload: bytes


def _error_rows(rejected: PCollection[Rejected], handling: Mapping[str, str]) -> dict[str, PCollection[Any]]:
    """What is rejected as rows, by the name that `error_handling` of Beam YAML gives."""
    as_row = beam.Map(lambda each: RejectedRow(each.reason.value, each.message, each.payload))
    return {handling["output"]: rejected | "AsRows" >> as_row.with_output_types(RejectedRow)}


class _RejectingTransform(WithErrorHandler):
    """A transform of points with `Rejected` elements.

    Attributes:
      error_handling: of Beam YAML: `output` names the rejected elements.
    """

    _error_handling: Mapping[str, str] | None = None

    def _outputs(self, points: PCollection[Any], rejected: PCollection[Rejected]) -> Any:
        if self._error_handling:
            return {"good": points, **_error_rows(rejected, self._error_handling)}
        if self._handler is None:
            return PointsAndRejected(points, rejected)
        self._handler.add_error_pcollection(rejected)
        return points


class ParsePoints(_RejectingTransform):
    """Parses messages: `bytes` or `PubsubMessage` in, `PointBatch` and `Rejected` out.

    A row of one field, as of Beam YAML and managed sources, is the bytes or the text in it.

    Short messages of a bundle and window are parsed together. Attributes of a message may name its encoding
    or, with `formats`, its format, as for `timebeam ingest`. The arrival of the points, by which the newer of
    two values of one time wins, is the publish time of a message of Pub/Sub; else the timestamp of the
    element; else, if it has none, the time at which the transform was made.

    Without an error handler, `points, rejected = messages | ParsePoints(…)`. With one, only points come out.
    A rejection has the window of its message, and the arrival as timestamp.

    >>> messages = beam.Pipeline() | beam.Create([b"sys.load,host=web1 value=0.5 1356998400000000000"])
    >>> points, rejected = messages | ParsePoints("influx")
    >>> points.element_type.__name__, rejected.element_type.__name__
    ('PointBatch', 'Rejected')
    """

    def __init__(
        self,
        format: FormatName | str,  # noqa: A002
        *,
        options: Mapping[str, object] | None = None,
        formats: Sequence[str] = (),
        error_handling: Mapping[str, str] | None = None,
    ) -> None:
        """How messages are read.

        Args:
          format: its name, such as `influx`, or `auto` for the first of `formats` that reads a message.
          options: of the formats, by name, such as `influx_precision`.
          formats: those that messages may name in their attribute `format`.
          error_handling: for Beam YAML; `output` is the name of the rejected elements.

        Raises:
          ValueError: no format has the name, an option is wrong, or the format holds annotations.
        """
        super().__init__()
        names = (*formats,) if format == AUTO else (format, *formats)
        if not names:
            raise ValueError(f"format {AUTO} needs formats: those to choose from")
        for name in names:
            message_format(name, options)
            if format_class(name).edits_annotations:
                raise ValueError(f"format {name} holds annotations, not points: use `timebeam ingest`")
        self._format, self._options, self._formats = format, dict(options or {}), tuple(formats)
        self._error_handling = error_handling

    def display_data(self) -> dict[str, DisplayDataItem]:
        return {"format": DisplayDataItem(self._format, label="Message Format")}

    def expand(self, messages: PCollection[object]) -> object:
        register_coders()
        gather = beam.ParDo(_MessagesFn(_now_ms())).with_output_types(list[Message])
        parse = parsing(ParseMessagesFn(self._format, self._options, self._formats))
        parsed = messages | "Gather" >> gather | "Parse" >> parse
        return self._outputs(parsed.main, parsed[REJECTED] | "OwnTimes" >> own_times())


class WritePoints(_RejectingTransform):
    """Writes points: `PointBatch`, `Point` or any row with its fields in, `Rejected` out.

    The tables must exist (`timebeam tables create`). Each point is stored once: a repeated bundle writes the
    same cells again, the latest arrival wins, and no point is late. The arrival of a `Point` is the timestamp
    of its element; else, if it has none, the time at which the transform was made.

    Rejections come out, or go to the error handler, in the windowing of the input. Those of points keep
    window and timestamp. Those of packed rows, which hold points of many windows, come out in the window of
    the time at which they are rejected; a drained pipeline may emit them late.

    >>> points = beam.Pipeline() | beam.Create([Point("sys.load", {"host": "web1"}, 1, int_value=7)])
    >>> write = WritePoints("projects/my-project/instances/my-instance", "opentsdb")
    >>> (points | write).element_type.__name__
    'Rejected'
    >>> windows = beam.WindowInto(beam.window.SlidingWindows(60, 10))
    >>> points | "Slide" >> windows | "Twice" >> write  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: WritePoints: SlidingWindows puts a point into several windows, ...
    """

    def __init__(
        self,
        target: Target | str,
        store: StoreName | str | Store,
        *,
        store_options: Mapping[str, object] | None = None,
        packing: str | None = None,
        flush_seconds: float = 30,
        auto_create_metrics: bool = False,
        error_handling: Mapping[str, str] | None = None,
    ) -> None:
        """Where the points are stored, and how.

        Args:
          target: `projects/P/instances/I`, or with an app profile `projects/P/instances/I/appProfiles/A`.
          store: a store of `timebeam.stores`, or its name.
          store_options: of the store that has this name, such as `table_prefix`; as the tables were made.
          packing: `points`, `compacted` or `append`; by default a cell for each point of a stream, and the
            first packing of the store for bounded input.
          flush_seconds: how long points of a stream are gathered to be packed together.
          auto_create_metrics: whether metrics without a UID get one, as in a TSD; else they are rejected.
          error_handling: for Beam YAML; `output` is the name of the rejected elements.

        Raises:
          ValueError: a name or an option is wrong, or nothing can be written into the store so.
        """
        super().__init__()
        self._target = as_target(target)
        self._store = _writable(_made(store, store_options or {}) if isinstance(store, str) else store)
        self._packing = None if packing is None else Packing(packing)
        if self._packing not in (None, *self._store.writing.packings):
            raise ValueError(f"store {self._store.name} has no packing {packing}")
        self._flush_seconds, self._creates = flush_seconds, auto_create_metrics
        self._error_handling = error_handling

    def display_data(self) -> dict[str, DisplayDataItem]:
        table = data_tables(self._store)[0]
        return displayed(self._target, table) | {
            "store": DisplayDataItem(self._store.name, label="Store"),
            "packing": DisplayDataItem(self._packing or "default", label="Packing"),
        }

    def expand(self, points: PCollection[object]) -> object:
        check_one_window(points.windowing.windowfn)
        register_coders()
        is_stream = not points.is_bounded
        packing = self._packing or (Packing.POINTS if is_stream else self._store.writing.packings[0])
        is_marked = self._store.writing.marked_since_s is not None
        graph = PointsGraph(
            self._store,
            packing,
            self._target,
            "direct",
            UidOptions(UidPolicy(auto_create_metrics=self._creates)),
            hours_writer=ChangedHoursWriter(self._store) if is_marked else None,
        )
        flow = Flow(endless=is_stream, flush_seconds=self._flush_seconds if is_stream else None)
        before: list[PCollection[Rejected]] = []
        batches: PCollection[Any] = points
        if points.element_type != PointBatch:
            gathered = points | "Gather" >> rejecting(BatchPointsFn(_now_ms()), PointBatch)
            batches, before = gathered.main, [gathered[REJECTED]]
        encoded, rejected = graph.encode(points.pipeline, flow, batches)
        if batches is not points:
            rejected = [(rejected | "RejectedPoints" >> beam.Flatten()) | "OwnTimes" >> own_times()]
        if is_stream:
            encoded = on_arrival(encoded, flow)
        else:
            encoded = encoded | "InGlobalWindow" >> beam.WindowInto(GlobalWindows())
        after = graph.write(encoded, flow) | "RejectedRows" >> beam.Flatten()
        timed = after | "AtRejection" >> beam.Map(_timed_now).with_output_types(Rejected)
        windowed = timed | "InWindowsOfInput" >> beam.WindowInto(points.windowing)
        result = (*before, *rejected, windowed) | "Rejected" >> beam.Flatten().with_output_types(Rejected)
        if self._error_handling:
            return _error_rows(result, self._error_handling)
        if self._handler is None:
            return result
        self._handler.add_error_pcollection(result)
        return PDone(points.pipeline)


class ReadPoints(_RejectingTransform):
    """Reads the points of a time range: a pipeline in, `PointBatch` or `Point`, and `Rejected` out.

    Each time of a series comes once. The arrivals in a `PointBatch` are the timestamps of the cells. A
    `Point` has its own time as the timestamp of its element, so that it can be windowed. What cannot be read
    is rejected: corrupt cells and, with `as_rows`, values that are not numbers.

    >>> root = beam.Pipeline()
    >>> points, rejected = root | ReadPoints("projects/p/instances/i", "opentsdb", 0, 10**12)
    >>> points.element_type.__name__
    'PointBatch'
    """

    def __init__(
        self,
        target: Target | str,
        store: StoreName | str | ReadableStore,
        start_ms: int,
        end_ms: int,
        *,
        store_options: Mapping[str, object] | None = None,
        as_rows: bool = False,
        error_handling: Mapping[str, str] | None = None,
    ) -> None:
        """What is read.

        Args:
          target, store, store_options: as of `WritePoints`.
          start_ms, end_ms: first and last time, both inclusive, in ms since 1970.
          as_rows: whether `Point` rows come out, one for each point.
          error_handling: for Beam YAML; `output` is the name of the rejected elements.

        Raises:
          ValueError: a name or an option is wrong, or the range ends before it starts.
        """
        super().__init__()
        self._target = as_target(target)
        self._store: ReadableStore = _made(store, store_options or {}) if isinstance(store, str) else store
        if end_ms < start_ms:
            raise ValueError(f"end_ms {end_ms} is before start_ms {start_ms}")
        self._range, self._as_rows, self._error_handling = (start_ms, end_ms), as_rows, error_handling

    def display_data(self) -> dict[str, DisplayDataItem]:
        table = data_tables(self._store)[0]
        return displayed(self._target, table) | {
            "store": DisplayDataItem(self._store.name, label="Store"),
            "startMs": DisplayDataItem(self._range[0], label="First Time"),
            "endMs": DisplayDataItem(self._range[1], label="Last Time"),
        }

    def expand(self, root: PBegin) -> object:
        register_coders()
        read = root | "Points" >> ReadBatches(self._target, self._store, *self._range)
        if not self._as_rows:
            return self._outputs(read.main, read[REJECTED])
        rows = read.main | "Rows" >> rejecting(rows_of, Point)
        return self._outputs(rows.main, (read[REJECTED], rows[REJECTED]) | "Rejected" >> beam.Flatten())


def _made(name: str, options: Mapping[str, object]) -> Store:
    """The store of a name; raises ValueError if it has not all of these options."""
    store: Any = make_store(name, options)
    names = [field.name for field in dataclasses.fields(store.options)]
    for option in options:
        if option not in names:
            raise ValueError(f"store {name} has no option {option}: it has {', '.join(names)}")
    return store


def _writable(store: Store) -> Store:
    """The store; raises ValueError if points cannot be written into it."""
    if store.writing.read_only:
        raise ValueError(f"store {store.name}: {store.writing.read_only}")
    return store


def _now_ms() -> int:
    """The time at which a graph is made: the arrival of elements without a timestamp, also if repeated."""
    return int(time.time() * 1000)


def _timed_now(rejected: Rejected) -> Any:
    """A rejection with the time of now as its timestamp."""
    return TimestampedValue(rejected, time.time())


class _MessagesFn(GatherInWindowsFn[Message]):
    """Messages in, as `ParsePoints` takes them, or `Message`; lists of `Message` out."""

    most, most_weight = GATHERED_MESSAGES, GATHERED_BYTES

    def made(self, items: list[Message]) -> list[Message]:
        return items

    def process(
        self,
        element: Any,
        windows: WindowedValue = beam.DoFn.WindowedValueParam,  # type: ignore[assignment]
    ) -> Iterator[WindowedValue]:
        """Adds a message.

        Raises:
          TypeError: it is none.
        """
        message = self._message(element, windows)
        return self.add(message, len(message.text), windows)

    def _message(self, element: Any, windows: WindowedValue) -> Message:
        if isinstance(element, Message):
            return element
        if hasattr(element, "_asdict") and len(fields := list(element._asdict().values())) == 1:
            (element,) = fields  # a row of Beam YAML, or of a managed source
        if isinstance(element, str):
            element = element.encode()
        if isinstance(element, bytes):
            return Message(element, self.arrival_ms(windows))
        if not isinstance(element, PubsubMessage):
            raise TypeError(f"ParsePoints takes bytes or PubsubMessage, not {type(element).__name__}")
        published = element.publish_time
        arrival_ms = self.arrival_ms(windows) if published is None else int(published.timestamp() * 1000)
        return pubsub_message(element.data, element.message_id, arrival_ms, element.attributes or {}, "")
