"""A database: the tables of one store in Bigtable, to be asked and to be written, without Beam.

`timebeam query`, `series`, `suggest` and `serve` ask it, and so does `timebeam.open`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from timebeam.pipelines.query.answer_cache import Caches
from timebeam.pipelines.query.listings import NameKind, find_series, names_of, readable
from timebeam.pipelines.query.query_result import QueryResult
from timebeam.pipelines.query.selection_options import (
    SelectionOptions,
    Time,
    check_arguments,
    tag_text,
    time_text,
)
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.core.selection import AmbiguousNameError, Reader, Selection, UnknownNameError
from timebeam.schema.query.choose_rollups import choose
from timebeam.schema.query.question import Question
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.schema.series.series_patterns import SeriesQuery
from timebeam.schema.stores import as_opentsdb, find_opentsdb
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.opentsdb.stored_series import check_storable, question_of_tsuids
from timebeam.transforms.query.answer_question import Evaluated, evaluate, evaluate_histograms
from timebeam.transforms.query.budget import Budget, Meter, MeteredReader, metered
from timebeam.transforms.read.find_series import why_nothing
from timebeam.transforms.read.table_reader import ParallelReader

if TYPE_CHECKING:
    from timebeam.pipelines.options.place import Place
    from timebeam.schema.core.points import PointBatch as Points
    from timebeam.schema.core.rejections import Rejected
    from timebeam.schema.stores import OpenTsdb

_WARNED = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Database:
    """The tables of one store. `timebeam.open` makes it; it keeps no connection of its own.

    Attributes:
      target: the Bigtable instance; its `stop` counts and stops what is read.
      store: the layout of the tables.
      rollups: the rollup tables that may serve queries; None for points alone.
      caches: what is kept between queries; None for nothing.
      create_command: what a user runs to create the tables.
    """

    target: Target
    store: ReadableStore
    rollups: tuple[OpenTsdb, RollupConfig] | None = None
    caches: Caches | None = None
    create_command: str = "timebeam tables create"

    @classmethod
    def of(
        cls,
        place: Place,
        *,
        store: ReadableStore | None = None,
        rollup_config: str | None = None,
        cache_bytes: int = 0,
    ) -> Self:
        """The database of a place.

        Args:
          store: what the place describes; None to make it.
          rollup_config: a file; None for points alone.
          cache_bytes: of the answers that are kept; 0 for no caches.

        Raises:
          UsageError: a setting, or the configuration, is wrong.
        """
        store = place.readable() if store is None else store
        rollups = None if rollup_config is None else place.rollups(rollup_config)
        caches = Caches(store, cache_bytes) if cache_bytes else None
        return cls(place.target, store, rollups, caches, place.create_command())

    @property
    def reader(self) -> Reader:
        """Reads the tables, as far as the budget goes."""
        return metered(self.target)

    @property
    def meter(self) -> Meter:
        """Counts what is read."""
        return Meter.of(self.target)

    def metered(self, meter: Meter) -> Self:
        """The same with a meter of its own, as for one request."""
        meter.remembers = None if self.caches is None else self.caches.remembers
        return dataclasses.replace(self, target=dataclasses.replace(self.target, stop=meter))

    def check_tables(self, also: Sequence[TableSpec] = ()) -> None:
        """Raises BigtableError if a table of the store, or one of `also`, does not exist."""
        check_tables(self.target, [*self.store.tables(), *also], self.create_command)

    def question(self, options: SelectionOptions, now_ms: int) -> Question:
        """What options ask of points.

        Raises:
          ValueError: an option is wrong.
          BigtableError: a table is missing.
          UnknownNameError: a TSUID has a UID without a name.
        """
        question = options.question(now_ms)
        self.check_tables()
        if options.tsuid:
            question = question_of_tsuids(question, self.store, options.tsuid, self.reader)
        return question

    def check_scan(self, question: Question) -> None:
        """Raises ValueError if the store has to read all rows of a table to answer."""
        selection = Selection(question.metric, question.tags, question.start_ms, question.end_ms)
        scanned = self.store.full_scan(selection)
        if scanned:
            raise ValueError(f"{scanned}: give --tag for these, or --full-scan")

    def answer(
        self,
        question: Question,
        now_ms: int,
        *,
        with_annotations: bool = False,
        with_rollups: bool = True,
        cache_key: Hashable = None,
    ) -> Evaluated:
        """The answer to a question, out of points and rollups.

        Args:
          cache_key: all that the answer depends on, beside the tables, the plan of rollups and the
            annotations; the answer is taken from the cache, and kept there, if its range is over. None for
            no cache: an answer with points still to come would be kept for nothing.

        Raises:
          UnknownNameError: a metric, tag key or tag value is unknown.
          AmbiguousNameError: two UIDs have one name.
          ValueError: a fill is too large.
          StoppedError: by the meter.
        """
        rollups = self.rollups if with_rollups else None
        compute = functools.partial(
            evaluate, self.target, self.store, question, rollups, now_ms, with_annotations=with_annotations
        )
        caches, reader = self.caches, metered(self.target, ParallelReader)
        is_over = question.range.until_ms <= now_ms
        if cache_key is None or caches is None or not isinstance(reader, MeteredReader) or not is_over:
            return self.with_names(compute)
        plan = None if rollups is None else choose(rollups[1], question, now_ms)
        key = (cache_key, question.series, plan, with_annotations)
        return self.with_names(lambda: caches.answers.evaluated(key, compute, reader))

    def histograms(
        self,
        question: Question,
        percentiles: Sequence[float],
        *,
        has_buckets: bool,
        with_annotations: bool = False,
    ) -> Evaluated:
        """The answer to a question out of histograms; see `evaluate_histograms`, and `answer`.

        Raises:
          MissingAbilityError: the store has no histograms.
        """
        compute = functools.partial(
            evaluate_histograms,
            self.target,
            as_opentsdb(self.store, "histograms"),
            question,
            percentiles,
            has_buckets=has_buckets,
            with_annotations=with_annotations,
        )
        return self.with_names(compute)

    def with_names(self, compute: Callable[[], Evaluated]) -> Evaluated:
        """An answer; if two UIDs seem to have one name, names are read again, and it is computed once more.

        Names are cached: if a UID was renamed and a new UID has its old name, both seem to have it.

        Raises:
          AmbiguousNameError: two UIDs have one name.
        """
        meter = self.meter
        read = meter.read
        try:
            return compute()
        except AmbiguousNameError:
            if self.caches is None:
                raise
            meter.read = read  # the same rows are about to be read again
            self.caches.forget_names()
            meter.remembers = self.caches.remembers
            return compute()

    def query(
        self,
        metric: str | None = None,
        *,
        start: Time,
        end: Time = "now",
        tags: Mapping[str, str | Sequence[str]] | None = None,
        explicit_tags: bool = False,
        tsuids: Sequence[str] = (),
        aggregator: str = "none",
        downsample: str | None = None,
        rate: str | None = None,
        group_by: str | Sequence[str] = (),
        timezone: str = "UTC",
        rollups: bool = True,
        full_scan: bool = False,
        max_seconds: float | None = None,
    ) -> QueryResult:
        """The points of a metric in a range of time, selected and aggregated as by `timebeam query`.

        >>> database.query("sys.load", start="1h-ago", downsample="1m-avg").to_pandas()  # doctest: +SKIP

        Args:
          metric: None if `tsuids` name the series.
          start, end: first and last time, both inclusive: `1h-ago`, `2026-11-21`, s or ms since 1970, or a
            datetime with a zone.
          tags: tag keys that a series must have; for each a value, several, or `*` for any.
          explicit_tags: whether a series may have no other tag keys.
          tsuids: of OpenTSDB, in hexadecimal digits, in place of metric and tags.
          aggregator: of the series of a group, as `sum`; `none` keeps all series.
          downsample: one value for each interval, as `1m-avg` or `1h-max-zero`.
          rate: `rate`, `rate{counter}` or `rate{dropcounter}`: the change per second.
          group_by: a tag key, or several; one group per combination of their values.
          timezone: of days, and of the times in the answer.
          rollups: whether rollup tables may serve, if the database has some.
          full_scan: whether all rows of a table may be read.
          max_seconds: after which the query stops; None for never.

        Raises:
          ValueError: an argument is wrong, or it is a full scan.
          LookupError: a metric, tag key or tag value is unknown; the message has similar names.
          BigtableError: a table does not exist.
          StoppedError: `max_seconds` are over.
        """
        check_arguments(metric, tags, group_by, timezone)
        options = SelectionOptions(
            metric,
            time_text(start),
            time_text(end),
            timezone,
            [tag_text(key, values) for key, values in (tags or {}).items()],
            explicit_tags,
            tsuids,
            aggregator,
            rate,
            downsample,
            [group_by] if isinstance(group_by, str) else group_by,
        )
        database = self if max_seconds is None else self.metered(Meter(Budget.of_seconds(max_seconds)))
        now_ms = int(time.time() * 1000)
        try:
            question = database.question(options, now_ms)
            if not full_scan:
                database.check_scan(question)
            answer = database.answer(question, now_ms, with_rollups=rollups)
        except UnknownNameError as error:
            raise LookupError(error.told()) from None
        for line in answer.corruption[:_WARNED]:
            warnings.warn(f"skipped: {line}", stacklevel=2)
        if not answer.series:
            warnings.warn(f"nothing found: {why_nothing(self.target, self.store)}", stacklevel=2)
        return QueryResult(answer.results, timezone)

    def series(self, pattern: str = "*") -> list[Series]:
        """The series that match a pattern, as `timebeam series` finds them.

        >>> database.series("sys.*{host=web*,dc=lga|sjc}")  # doctest: +SKIP
        [Series(metric='sys.load', tags=(('dc', 'lga'), ('host', 'web01')), resources=())]

        Args:
          pattern: of a metric, and of tag values in braces; `*` matches any text, `|` separates patterns.

        Raises:
          ValueError: the pattern is wrong.
          BigtableError: a table does not exist.
        """
        query = SeriesQuery.parse(pattern)
        self.check_tables()
        skipped: list[str] = []
        matching = [listed.series for listed in readable(find_series(self, query)[0], skipped)]
        for line in skipped[:_WARNED]:
            warnings.warn(f"skipped: {line}", stacklevel=2)
        return matching

    def suggest(self, prefix: str = "", *, kind: NameKind = "metrics", limit: int = 25) -> list[str]:
        """The first names that begin with a prefix, ascending by their bytes, as `timebeam suggest` has them.

        >>> database.suggest("sys.")  # doctest: +SKIP
        ['sys.cpu.percent', 'sys.load']

        Args:
          kind: `metrics`, `tagk` for tag keys or `tagv` for tag values.

        Raises:
          ValueError: no name can begin so.
          BigtableError: a table does not exist.
        """
        opentsdb = find_opentsdb(self.store)
        if opentsdb is not None:
            check_storable(opentsdb, [prefix])
        self.check_tables()
        return list(itertools.islice(names_of(self, kind, prefix, []), limit))

    def write(self, points: Points, *, auto_create_metrics: bool = False) -> list[Rejected]:
        """Stores points, with new UIDs, as `timebeam ingest` does; returns what is rejected.

        It is for some thousands of points at once. The last arrival of a point wins. It applies no limits of
        series, and writes no metadata.

        >>> parsed = timebeam.parse("influx", b"load,host=a value=0.5 1356998400000000000")  # doctest: +SKIP
        >>> database.write(parsed.points, auto_create_metrics=True)  # doctest: +SKIP
        []

        Args:
          auto_create_metrics: whether OpenTSDB's tables take metrics that have no UID yet.

        Raises:
          ValueError: the store cannot be written to.
          TypeError: `points` are none.
          BigtableError: a table does not exist.
        """
        from timebeam.schema.core.points import PointBatch
        from timebeam.transforms.ingest.points_writer import PointsWriter

        if not isinstance(points, PointBatch):
            raise TypeError(f"write takes Points, such as parse(...).points, not {type(points).__name__}")
        writer = PointsWriter.of(self.target, self.store, auto_create_metrics=auto_create_metrics)
        self.check_tables(writer.tables)
        return writer.write(points)
