"""The jobs of `timebeam ingest` and `timebeam replay`, and their graph: the same for files and messages.

source ─► parse ─► assign UIDs ─► encode ─► group per row ─► pack ─► write
   └────────┴───────────┴───────────┴───────────────────────┴───────┴──► dead letters
             (annotations leave behind parse: merged with what is stored, by compare-and-set)

What the points of a file of OpenTSDB's JSON pass on their way to a mutation, in the order in which it is
first called, as tests/jobs/ingest/test_way_of_a_file.py checks; other formats and layouts have modules of the
same kinds.

- `timebeam.transforms.input.files.blocks_by_arrival`: files by arrival, oldest first, in portions
- `timebeam.transforms.input.cut_json.JsonCutter.add`: is it one document, or lines?
- `timebeam.transforms.input.cut_lines.LineCutter.add`: bytes to blocks of whole lines, as `Message`
- `timebeam.transforms.input.parse.ParseFn.process`: the step that parses
- `timebeam.schema.formats.base.MessageFormat.parse`: the door of all formats
- `timebeam.schema.formats.linewise.LineFormat.columnar`: a block of lines at once
- `timebeam.schema.formats.opentsdb.put_points.OpenTsdbJson.locate`: where time and value are in each line
- `timebeam.schema.bits.text_columns.numbers`: digits to numbers
- `timebeam.schema.formats.opentsdb.put_points.OpenTsdbJson.records`: the first line of each series in full
- `timebeam.transforms.ingest.encode_group_pack.AssignFn.process`: the step that finds the key of each series
- `timebeam.transforms.opentsdb.assign_uids.UidTable.resolve`: names to UIDs, new ones assigned
- `timebeam.schema.stores.opentsdb.keys.series_key`: UIDs to the bytes before and after the base time
- `timebeam.transforms.ingest.encode_group_pack.EncodeFn.process`: the step that encodes
- `timebeam.schema.stores.opentsdb.encode.encode`: points to rows, sorted
- `timebeam.schema.stores.opentsdb.columns.point_elements.qualifier_codes`: offsets to qualifiers
- `timebeam.schema.stores.opentsdb.keys.row_keys`: base times into the keys
- `timebeam.schema.core.point_fragments.SlotPoints.fragments`: the points of a row to one fragment
- `timebeam.transforms.flow.steps.BufferedDoFn.process`: a step gathers what it handles together
- `timebeam.transforms.ingest.encode_group_pack._GroupFn.handle`: the fragments of each row come together
- `timebeam.transforms.ingest.encode_group_pack.PackFn.process`: the step that packs
- `timebeam.schema.stores.opentsdb.encode.cell_columns`: the points of rows to compacted columns
- `timebeam.transforms.bigtable.beam_steps.RowWriter.add`: the writer gathers rows to requests
- `timebeam.transforms.ingest.row_mutations.hours_written`: marks the hours of the rows, before and after
- `timebeam.transforms.bigtable.write_rows.mutate_rows`: sends a request, again where the service is busy
- `timebeam.transforms.bigtable.mutation_bytes.request_bytes`: the bytes of the mutations
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystem import FileMetadata
from apache_beam.pvalue import PCollection

from timebeam.pipelines.ingest.store_points import StoringOptions, storing_graph
from timebeam.pipelines.jobs.job import FilesJob, InputGraph, Job, Needs, Source, StreamJob
from timebeam.pipelines.options.parameters import DECLARED, RECORDS, UsageError, usage_errors
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.options.store_settings import with_names
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.plugins import PluginError
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import AUTO, FORMATS, Framing, Message, format_class, is_format, message_format
from timebeam.schema.series.series_limits import SeriesLimits, counts_table
from timebeam.schema.series.series_patterns import parse_limits
from timebeam.schema.stores import make_store
from timebeam.transforms.dead_letters.replay import POINTS, ROWS, OpenLetters, ReadLetters
from timebeam.transforms.flow.steps import REJECTED
from timebeam.transforms.ingest.limit_series import SeriesLimiter
from timebeam.transforms.ingest.points_graph import ONCE, Flow, PointsGraph
from timebeam.transforms.ingest.write_packed_rows import StoreRows
from timebeam.transforms.input.files import match
from timebeam.transforms.input.parse import (
    ANNOTATIONS,
    JoinFn,
    ParseFn,
    ParseMessagesFn,
    gathered,
    parsing,
    single,
)
from timebeam.transforms.opentsdb.edit_annotations import StoreAnnotations


@dataclasses.dataclass(kw_only=True)
class IngestGraph(PointsGraph):
    """How the points of files and messages are parsed and stored in a layout.

    Attributes:
      format_name, format_options: see `message_format`.
      formats: other formats that messages may name in their attributes.
    """

    format_name: str
    format_options: Mapping[str, Any]
    formats: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parse = ParseMessagesFn(self.format_name, self.format_options, self.formats)

    def hold(self, *, portions: bool) -> list[object]:
        return [self.parse.hold(), *super().hold(portions=portions)]

    def needs(self) -> Needs:
        """What storing the points needs beside the tables."""
        return Needs(self.layout, self.packing, self.uids.policy.auto_create_metrics)

    def from_blocks(
        self, root: beam.Pipeline, read: beam.PTransform[Any, Any], flow: Flow = ONCE
    ) -> list[PCollection[Rejected]]:
        blocks = root | "Read" >> read
        parsed = blocks.main | "Parse" >> parsing(ParseFn(self.format_name, self.format_options))
        annotations = parsed[ANNOTATIONS] | "Annotations" >> self._annotations(flow)
        rejected = [blocks[REJECTED], parsed[REJECTED], annotations]
        points = parsed.main
        if flow.one_bundle:
            points = points | "JoinBlocks" >> beam.ParDo(JoinFn()).with_output_types(PointBatch)
        return rejected + self.store(root, flow, points)

    def from_messages(
        self,
        root: beam.Pipeline,
        read: beam.PTransform[Any, Any],
        flow: Flow,
        *,
        letters: bool = False,
    ) -> list[PCollection[Rejected]]:
        messages = root | "Read" >> read
        rejected: list[PCollection[Rejected]] = []
        if letters:
            messages, of_rows, rejected = open_letters(messages, self, self.layout, flow)
        parsed = gathered(messages) | "Parse" >> parsing(self.parse)
        annotations = parsed[ANNOTATIONS] | "Annotations" >> self._annotations(flow)
        rejected += [parsed[REJECTED], annotations]
        points = parsed.main
        if letters:
            points = (points, of_rows) | "WithPointsOfRows" >> beam.Flatten()
        return rejected + self.store(root, flow, points)

    def _annotations(self, flow: Flow) -> StoreAnnotations:
        return StoreAnnotations(
            self.target, self.layout, self.uids, endless=flow.endless, dry_run=self.dry_run
        )


def open_letters(
    messages: PCollection[Any], graph: InputGraph, layout: ReadableStore, flow: Flow
) -> tuple[PCollection[Message], PCollection[PointBatch], list[PCollection[Rejected]]]:
    """Opens dead letters: (their messages, the points of their rows, what is rejected).

    Rows that hold no points of the layout are written as they are, but in a dry run.
    """
    waits = flow.endless and not flow.one_bundle
    opened = single(messages) | "OpenLetters" >> OpenLetters(graph.target, layout, endless=waits)
    rejected = [opened[REJECTED]]
    if not graph.dry_run:
        rejected.append(opened[ROWS] | "WriteOtherRows" >> StoreRows(graph.target, (), "direct"))
    return opened["main"], opened[POINTS], rejected


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayFiles(Job):
    """Stores the payloads of dead letters.

    Attributes:
      files: those that exist when the command starts, so that it does not read its own dead letters.
    """

    graph: InputGraph
    files: Sequence[FileMetadata]

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        return self.graph.from_messages(root, ReadLetters(self.files), Flow(), letters=True)


@dataclasses.dataclass(frozen=True, slots=True)
class InputOptions(StoringOptions):
    """What is read and how it is stored: what `ingest` and `replay` have in common."""

    format: str
    formats: Sequence[str]
    format_options: Mapping[str, Any]
    records_encoding: str
    flush_seconds: float
    stop_when_idle: float | None
    max_new_series: Sequence[str]
    max_series: Sequence[str]
    max_tag_values: Sequence[str]
    max_all_series: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class IngestOptions(InputOptions):
    """The options of `timebeam ingest`."""

    input: Sequence[str]
    input_subscription: str | None
    input_topic: str | None
    preflight: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayOptions(InputOptions):
    """The options of `timebeam replay`."""

    source: str


def ingest_job(place: Place, options: IngestOptions) -> FilesJob | StreamJob:
    """The job of `timebeam ingest`.

    Raises:
      UsageError: options that cannot go together.
    """
    inputs = [name for name in ("input", "input_subscription", "input_topic") if getattr(options, name)]
    if len(inputs) != 1:
        raise UsageError("give one of --input, --input-subscription and --input-topic")
    place, graph, framing = _graph(place, options, endless=not options.input)
    if not options.input:
        source = Source(options.input_subscription, options.input_topic)
        return _messages_job(place, options, graph, source)
    if framing is Framing.NONE and not options.preflight:
        raise UsageError(f"--format {options.format} with these options reads messages, not files")
    return FilesJob(
        graph.target, graph.tables(), graph, options.input, framing, place=place, stores_settings=True
    )


def _messages_job(
    place: Place, options: InputOptions, graph: InputGraph, source: Source, *, letters: bool = False
) -> StreamJob:
    return StreamJob(
        graph.target,
        graph.tables(),
        graph,
        source,
        options.flush_seconds,
        options.stop_when_idle,
        letters,
        place=place,
        stores_settings=True,
    )


def _graph(place: Place, options: InputOptions, *, endless: bool) -> tuple[Place, InputGraph, Framing]:
    """(the place with how names are written, the graph of the options, how files of its format are cut).

    Raises:
      UsageError: options that cannot go together, such as limits of series for declared tables.
    """
    if place.layout == DECLARED:
        from timebeam.pipelines.ingest.ingest_records import (
            records_graph,  # other layouts need no declared tables
        )

        if _limits_of(options) is not None:
            raise UsageError(
                "--max-new-series, --max-series, --max-tag-values and --max-all-series need a layout of "
                "series; declared tables hold records"
            )
        return place, *records_graph(place, options)
    formats = formats_of(options.formats)
    format_options, framing = format_of(place, options)
    names = (options.format, *formats)
    escape = any(format_class(name).escapes_names for name in names if name != AUTO)
    place = with_names(place, escape=escape)
    layout = place.store
    graph = storing_graph(
        place,
        options,
        layout,
        IngestGraph,
        endless=endless,
        limiter=_limiter_of(place, options, layout),
        format_name=options.format,
        format_options=format_options,
        formats=formats,
    )
    if options.format != AUTO and format_class(options.format).edits_annotations:
        place.opentsdb("annotations")
    return place, graph, framing


def format_of(place: Place, options: InputOptions) -> tuple[dict[str, Any], Framing]:
    """The options of the message format by name, and how its files are cut.

    Raises:
      UsageError: an option makes no sense.
    """
    store = None if place.layout == DECLARED else make_store(place.layout, {})
    takes_resources = store is not None and store.writing.takes_resources
    format_options = {**options.format_options, "resources": takes_resources}
    if options.format == RECORDS:
        raise UsageError(f"--format {RECORDS} needs declared tables: --layout {DECLARED} --tables FILE")
    names = formats_of(options.formats)
    if options.format == AUTO and not names:
        raise UsageError(f"--format {AUTO} needs --formats: the formats to choose from")
    with usage_errors():
        if options.format != AUTO:
            names = (options.format, *names)
        formats = [message_format(name, format_options) for name in names]
    return format_options, Framing.NONE if options.format == AUTO else formats[0].framing


def formats_of(texts: Sequence[str]) -> tuple[str, ...]:
    """The formats that messages may name in their attributes.

    Raises:
      UsageError: there is none of such a name.
    """
    chosen = [name for text in texts for name in text.split(",")]
    for name in chosen:
        with usage_errors(PluginError):
            if not is_format(name):
                raise UsageError(f"--formats: unknown format {name!r}: choose from {', '.join(FORMATS)}")
    return tuple(chosen)


def _limits_of(options: InputOptions) -> SeriesLimits | None:
    """The limits of new series; None for none."""
    limits = SeriesLimits(
        parse_limits(options.max_new_series),
        parse_limits(options.max_series),
        parse_limits(options.max_tag_values),
        options.max_all_series,
    )
    return limits if limits else None


def _limiter_of(place: Place, options: InputOptions, layout: Store) -> SeriesLimiter | None:
    """What limits new series; None for no limits."""
    limits = _limits_of(options)
    if limits is None:
        return None
    table, with_meta = counts_table(place.table_prefix), options.meta != "off"
    return SeriesLimiter(place.target, layout, limits, table, with_meta=with_meta, dry_run=options.dry_run)


def replay_job(place: Place, options: ReplayOptions) -> ReplayFiles | StreamJob:
    """The job of `timebeam replay`.

    Raises:
      UsageError: options that cannot go together.
      OSError: there is no such file.
    """
    endless = options.source.startswith("projects/")
    place, graph, _ = _graph(place, options, endless=endless)
    if endless:
        return _messages_job(place, options, graph, Source(options.source), letters=True)
    files = match([options.source])
    return ReplayFiles(graph.target, graph.tables(), graph, files, place=place, stores_settings=True)
