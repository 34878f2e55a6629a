"""The tables of a history in the emulator: made, read back, and changed behind the project's back."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from google.cloud.bigtable.data import DeleteAllFromRow, DeleteRangeFromColumn, Mutation

from tests.schema.stores import plain_heroic, plain_kairosdb
from tests.schema.stores.plain_opentsdb import java_bucket
from tests.support import model as opentsdb_model
from tests.support.any_store import AnyStore
from tests.support.commands import timebeam
from tests.support.data_client import open_table
from tests.support.model import Content, SeriesName
from tests.support.stored import Store
from tests.system.files import CODEC
from tests.system.model import PLAIN_GROUPS, STAT_IDS, STAT_OF_ID, RollupKey, hour_of, interval_text
from tests.system.steps import HOUR_S, SERIES, START_S, Delete, Point, Setup
from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.schema.core.points import Series
from timebeam.schema.stores import make_store
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import scan_table

_DATA = {"opentsdb": "tsdb", "heroic": "metrics", "heroic-readable": "metrics", "kairosdb": "data_points"}
_CHOSEN = ("--decimals=", "--retention-class=")
"""Options of layouts that each writer chooses, and no other command has."""
_SPANS = {600: "1d", 1800: "1d", 3600: "1n", 7200: "1n", 86_400: "1y"}


def write_config(path: Path, setup: Setup) -> Path:
    """The rollup configuration of a history."""
    of_series = setup.layout != "opentsdb"
    intervals: list[dict[str, object]] = [
        {"table": _DATA[setup.layout], "preAggregationTable": PLAIN_GROUPS}
        | {"interval": "1m", "rowSpan": "1h", "defaultInterval": True}
    ]
    for length in setup.intervals:
        table = f"{length}-" if of_series else f"rollup-{length}"
        intervals.append(
            {"table": table, "preAggregationTable": f"preagg-{length}"}
            | {"interval": interval_text(length), "rowSpan": _SPANS[length]}
        )
    groups = [{"metrics": ["sys.*"], "keepTags": ["host"], "aggregators": ["sum", "max"]}]
    config = {
        "aggregationIds": STAT_IDS,
        "intervals": intervals,
        "timebeam": {"preAggregates": [] if of_series else groups},
    }
    path.write_text(json.dumps(config))
    return path


def _without_chosen(words: Iterable[str]) -> list[str]:
    """The options that all commands take."""
    return [word for word in words if not word.startswith(_CHOSEN)]


@dataclasses.dataclass(frozen=True)
class Tables:
    """The tables of one layout, with those of its rollups."""

    store: AnyStore
    config: Path | None

    @classmethod
    def create(
        cls, place: tuple[str, str], prefix: str, layout: str, options: Mapping[str, str], config: Path | None
    ) -> Tables:
        """Makes the tables by `timebeam tables create`."""
        store = _store(place, prefix, layout, options)
        flags = [f"--rollup-config={config}"] if config else []
        flags += ["--meta", "--series-limits"] if layout == "opentsdb" else []
        ran = timebeam("tables", "create", *_without_chosen(store.flags), *flags)
        assert ran.code == 0, ran.err
        return cls(store, config)

    @property
    def layout(self) -> str:
        """The name of the layout."""
        return self.store.layout.name

    @property
    def has_uids(self) -> bool:
        """Whether names have UIDs."""
        return bool(self.store.auto_create)

    @property
    def place(self) -> list[str]:
        """The options that name the instance."""
        return self.store.place

    @property
    def flags(self) -> list[str]:
        """The options that name these tables."""
        return _without_chosen(self.store.flags)

    @property
    def chosen(self) -> list[str]:
        """The options that writers choose."""
        return [word for word in self.store.layout_flags() if word.startswith(_CHOSEN)]

    def options(self, start: str = "") -> list[str]:
        """See `AnyStore.layout_flags`; without those that writers choose, of tables that are read."""
        return _without_chosen(self.store.layout_flags(start))

    def content(self) -> Content:
        """All points, decoded."""
        return self.store.content()

    def histograms(self) -> dict[tuple[SeriesName, int, bool], str]:
        """The text in each histogram, by its series, time in ms and whether its column counts ms."""
        layout = self.store.layout
        if not isinstance(layout, OpenTsdb):
            return {}
        names = Store(self.store.target, layout).names()
        texts: dict[tuple[SeriesName, int, bool], str] = {}
        for row in scan_table(self.store.target, layout.data_table):
            for cell in row.cells:
                if cell.qualifier[0] == 6 and len(cell.qualifier) in (3, 5):
                    assert cell.value[0] == CODEC
                    series, base_s = _read_key(row.key, names, layout)
                    in_ms = len(cell.qualifier) == 5
                    offset_ms = int.from_bytes(cell.qualifier[1:], "big") * (1 if in_ms else 1000)
                    texts[series, base_s * 1000 + offset_ms, in_ms] = cell.value[1:].decode()
        return texts

    def delete(self, step: Delete, points: Iterable[Point]) -> None:
        """Deletes the points of a series in an hour; `points` are all that were ever sent."""
        series, hour_s = SERIES[step.series], START_S + step.hour * HOUR_S
        if self.layout == "opentsdb":
            self._delete_row(series, hour_s)
            return
        times = {
            point.time_ms
            for point in points
            if point.series == step.series and hour_of(point.time_ms) == hour_s
        }
        for time_ms in times:
            self._delete_cells(series, time_ms)

    def named_series(self) -> set[int]:
        """The series of which all names have a UID."""
        layout = self.store.layout
        assert isinstance(layout, OpenTsdb)
        uids = {(name.kind, name.text) for name in Store(self.store.target, layout).uids()}
        known = set[int]()
        for number, (metric, tags) in enumerate(SERIES):
            names = {("metrics", metric)}
            names |= {(kind, text) for tag in tags for kind, text in zip(("tagk", "tagv"), tag, strict=True)}
            known |= {number} if names <= uids else set()
        return known

    def empty_index(self) -> None:
        """Deletes all rows of the tables that hold no points."""
        for spec in self.store.layout.tables():
            if not spec.holds_points:
                table = open_table(self.store.target, spec.name)
                for row in scan_table(self.store.target, spec.name):
                    table.mutate_row(row.key, DeleteAllFromRow())

    def _delete_row(self, series: SeriesName, hour_s: int) -> None:
        """Deletes a row of OpenTSDB's layout, whose key is made by hand."""
        layout = self.store.layout
        assert isinstance(layout, OpenTsdb)
        uids = Store(self.store.target, layout).uids()
        point = opentsdb_model.Point(series, hour_s, 0, 0)
        try:
            key = opentsdb_model.row_key(point, uids, layout.options)
        except KeyError:  # a name that was never stored
            return
        open_table(self.store.target, layout.data_table).mutate_row(key, DeleteAllFromRow())

    def _delete_cells(self, series: SeriesName, time_ms: int) -> None:
        """Deletes the cells of one instant, whose keys are made by the plain codecs of the tests."""
        metric, tags = series
        table = open_table(self.store.target, self.store.layout.tables()[0].name)
        if self.layout == "kairosdb":
            options = self.store.options
            column = plain_kairosdb.column(time_ms, str(options.get("row_spec", "legacy")))
            family = "d" + str(options.get("retention_class", ""))
            for data_type in ("kairos_long", "kairos_double"):
                row_ms = plain_kairosdb.row_time(time_ms)
                key = plain_kairosdb.row_key(metric, row_ms, data_type, dict(tags))
                table.mutate_row(key, _gone(family, column))
            return
        base, offset = divmod(time_ms, plain_heroic.PERIOD)
        named = Series.of(metric, dict(tags))
        key = plain_heroic.row_key(self.layout, named, base * plain_heroic.PERIOD)
        table.mutate_row(key, _gone("points", plain_heroic.qualifier(self.layout, offset)))

    def rollups(self) -> dict[RollupKey, int | float]:
        """Everything in the tables of rollups, by struct; asserts that no number is there twice."""
        assert self.config is not None
        config = json.loads(self.config.read_text())
        numbers: dict[RollupKey, int | float] = {}
        for interval in config["intervals"]:
            default = interval.get("defaultInterval", False)
            length = _seconds(interval["interval"])
            if self.layout == "opentsdb":
                for name in [interval["preAggregationTable"], *([] if default else [interval["table"]])]:
                    self._read_rollups(name, length, numbers)
            elif not default:
                options = {key: str(value) for key, value in self.store.options.items()}
                prefix = options.pop("table_prefix") + interval["table"]
                options.pop("archive", None)
                place = (self.store.target.project, self.store.target.instance)
                content = _store(place, prefix, self.layout, options).content()
                for (series, time_ms), (_, value) in content.items():
                    raw = struct.unpack(">d", value)[0] if isinstance(value, bytes) else value
                    numbers[f"rollup-{length}", series, "", time_ms // 1000] = raw
        return numbers

    def _read_rollups(self, name: str, length: int, numbers: dict[RollupKey, int | float]) -> None:
        """Adds the numbers of one table of OpenTSDB's layout."""
        layout = self.store.layout
        assert isinstance(layout, OpenTsdb)
        names = Store(self.store.target, layout).names()
        for row in scan_table(self.store.target, layout.options.table_prefix + name):
            series, base_s = _read_key(row.key, names, layout)
            for cell in row.cells:
                code = int.from_bytes(cell.qualifier[-2:], "big")
                value = struct.unpack(">d" if code & 8 else ">q", cell.value)[0]
                if name == PLAIN_GROUPS:
                    start, stat = base_s + (code >> 4), dict(series[1])["_aggregate"].lower()
                else:
                    start, stat = base_s + (code >> 4) * length, STAT_OF_ID[cell.qualifier[0]]
                assert (name, series, stat, start) not in numbers
                numbers[name, series, stat, start] = value


def _store(place: tuple[str, str], prefix: str, layout: str, options: Mapping[str, str]) -> AnyStore:
    """The store of a layout's tables; makes nothing."""
    texts = {"table_prefix": prefix, **options}
    values = {parameter.name: parameter.default for parameter in layout_parameters()}
    kinds = {parameter.name: parameter.kind for parameter in layout_parameters()}
    values |= {name: kinds[name](text) for name, text in texts.items()}
    return AnyStore(Target(*place), make_store(layout, values), texts)


def _gone(family: str, qualifier: bytes) -> Mutation:
    return DeleteRangeFromColumn(family, qualifier)


def _seconds(text: str) -> int:
    return int(text[:-1]) * {"m": 60, "h": 3600, "d": 86_400}[text[-1]]


def _read_key(key: bytes, names: Mapping[tuple[str, bytes], str], layout: OpenTsdb) -> tuple[SeriesName, int]:
    """(series, base time in s) of a row key of any widths; asserts that its salt is right."""
    options = layout.options
    widths = [options.uid_width_tagk, options.uid_width_tagv]
    salt, rest = key[: options.salt_width], key[options.salt_width :]
    metric, rest = rest[: options.uid_width_metric], rest[options.uid_width_metric :]
    (base_s,), tail = struct.unpack(">I", rest[:4]), rest[4:]
    if salt:
        assert int.from_bytes(salt, "big") == java_bucket(metric + tail, options.salt_buckets)
    tags = []
    while tail:
        tag_key, value, tail = tail[: widths[0]], tail[widths[0] : sum(widths)], tail[sum(widths) :]
        tags.append((names["tagk", tag_key], names["tagv", value]))
    return (names["metrics", metric], tuple(sorted(tags))), base_s
