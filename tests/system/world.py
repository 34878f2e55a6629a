"""The tables of one history: runs its steps, and asserts after each that they hold what the model says."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tests.schema.stores.plain_opentsdb import number
from tests.support.commands import Ran, code_of, timebeam
from tests.system import files, tables
from tests.system.disagreement import DisagreementError, expect
from tests.system.model import Column, Instant, Model, Number, RollupKey, Version
from tests.system.queries import check_queries
from tests.system.steps import (
    DAY_S,
    HOUR_S,
    SERIES,
    START_S,
    Again,
    Archive,
    ChangedRange,
    Compact,
    Copy,
    Delete,
    Expire,
    Export,
    File,
    History,
    Ingest,
    MetaSync,
    Reindex,
    Remove,
    Rename,
    Replay,
    Rollup,
    Step,
    Trouble,
    Value,
)
from tests.system.tables import Tables
from tests.system.troubles import run
from timebeam.pipelines.store import closed_hours, delete


class World:
    """One run of one history."""

    def __init__(self, history: History, emulator: str, place: tuple[str, str], prefix: str, folder: Path):
        setup = history.setup
        self._history, self._emulator, self._folder = history, emulator, folder
        self._model = Model(setup.layout, setup.copy_layout, setup.intervals)
        self._config = tables.write_config(folder / "rollups.json", setup)
        self._tables = Tables.create(place, prefix, setup.layout, setup.options, self._config)
        self._copies = Tables.create(place, f"{prefix}to-", setup.copy_layout, setup.copy_options, None)
        self._runs = 0
        self._written: dict[str, tuple[Ingest, list[Path]]] = {}
        self._letters: dict[str, tuple[Path, list[File]]] = {}

    def run(self) -> None:
        """Runs all steps.

        Raises:
          DisagreementError: the tables or an answer differ from the model.
        """
        for position, step in enumerate(self._history.steps):
            try:
                self._run_step(step)
                self._check_points()
            except DisagreementError as error:
                error.step = f"step {position}, {type(step).__name__}"
                raise
        self._check_sound()
        chance = random.Random(self._history.seed)
        check_queries(self._tables, self._model, self._config, chance)

    def _run_step(self, step: Step) -> None:
        if isinstance(step, Ingest):
            folder = self._new_folder()
            paths = [files.write(folder / f"in{number}", file) for number, file in enumerate(step.files)]
            self._written[step.name] = step, paths
            self._ingest(step, paths, step.trouble)
        elif isinstance(step, Again) and step.of in self._written:
            self._ingest(*self._written[step.of], None)
        elif isinstance(step, Replay) and step.of in self._letters:
            self._replay(self._written[step.of][0], *self._letters[step.of])
        elif isinstance(step, Delete):
            points = [
                point
                for other in self._history.steps
                if isinstance(other, Ingest)
                for file in other.files
                for point in file.points
            ]
            self._tables.delete(step, points)
            self._model.delete(step.series, START_S + step.hour * HOUR_S)
        elif isinstance(step, Remove):
            self._remove(step)
        elif isinstance(step, Expire):
            self._expire(step)
        elif isinstance(step, Rollup):
            self._roll_up(step)
        elif isinstance(step, ChangedRange):
            self._redo_changed()
        elif isinstance(step, Compact):
            span = f"--start={START_S + step.start * HOUR_S}", f"--end={START_S + step.end * HOUR_S}"
            self._finish(["compact", *self._tables.flags, *span, f"--form={step.form}"], step.trouble)
        elif isinstance(step, Archive):
            self._archive_some(step)
        elif isinstance(step, Copy):
            self._copy(step)
        elif isinstance(step, Export):
            self._export(step)
        elif isinstance(step, MetaSync):
            self._sync_meta()
        elif isinstance(step, Rename) and step.of in self._written:
            self._rename(step)
        elif isinstance(step, Reindex):
            if step.emptied:
                self._tables.empty_index()
            self._finish(["reindex", *self._tables.flags], None)

    def _remove(self, step: Remove) -> None:
        metric, tags = SERIES[step.series]
        arguments = [
            *("delete", metric, "--explicit-tags", *(f"--tag={key}={value}" for key, value in tags)),
            *(*self._tables.flags, f"--start={step.first_ms}", f"--end={step.last_ms}"),
            *(f"--log={self._new_folder() / 'log'}", "--summary=json"),
            *(["--series"] if step.all_of_it else []),
        ]
        ran = timebeam(*arguments)
        if "did you mean" in ran.err or "o such" in ran.err:
            expect(not any(SERIES[series][0] == metric for series, _ in self._model.points), "names", ran)
            return
        expect(ran.code == 0, "exit code of delete", ran)
        token = json.loads(ran.out)["token"]
        if token:
            with mock.patch.object(delete, "SETTLED_MS", 0):
                self._finish([*arguments, "--token", token], step.trouble, settle_at_once)
        self._model.remove(step.series, step.first_ms, step.last_ms)

    def _expire(self, step: Expire) -> None:
        today, first = int(time.time()) // DAY_S, START_S // DAY_S
        rule = f"{step.metric}={today - first - step.days}"
        if step.rollup_days is not None:
            rule += f"/{'forever' if step.rollup_days < 0 else today - first - step.rollup_days}"
        arguments = [
            *("delete", *self._tables.flags, f"--keep-days={rule}", f"--rollup-config={self._config}"),
            *("--unattended", f"--log={self._new_folder() / 'log'}"),
        ]
        with mock.patch.object(delete, "SETTLED_MS", 0):
            self._finish(arguments, step.trouble, settle_at_once)
        rollups_end_s = None if step.rollup_days is None else START_S + step.rollup_days * DAY_S
        self._model.expire(step.metric, START_S + step.days * DAY_S, rollups_end_s)
        self._check_rollups(self._model.rollups)

    def _archive_some(self, step: Archive) -> None:
        end = (int(time.time()) - START_S) // HOUR_S - step.end
        arguments = [
            *(
                "archive",
                *self._tables.flags,
                f"--start={START_S + step.start * HOUR_S}",
                f"--older-than={end}h",
            ),
            *("--quiet-hours=0", "--reader-hours=0", f"--delete-source={step.delete_source}".lower()),
        ]
        with mock.patch.object(closed_hours, "SETTLED_MS", 0):
            self._finish(arguments, step.trouble, settle_at_once)

    def _ingest(self, step: Ingest, paths: list[Path], trouble: Trouble | None) -> None:
        letters = self._new_folder() / "dead"
        only = self._tables.named_series() if step.limited else None
        arguments = [
            *("ingest", *self._tables.flags, *self._ingest_flags(step)),
            *(f"--dead-letters={letters}", "--input", *map(str, paths)),
        ]
        if step.create and self._tables.has_uids:
            arguments.append("--auto-create-metrics")
        if step.limited:
            arguments.append("--max-series=0")
        ran, troubled = run(self._emulator, arguments, trouble)
        if troubled:
            self._check_partial(step.files)
            if trouble and trouble.kind == "refuse":
                expect(ran.code == code_of(json.loads(ran.out)), "exit code", ran)
                self._run_replay(step, letters)  # letters of other stages are rejected again
            else:
                expect(ran.code != 0, "exit code of a run that failed", ran)
                expect("Traceback" not in ran.err, "stack trace", ran.err)
                letters = self._new_folder() / "dead"
                arguments = [
                    f"--dead-letters={letters}" if text.startswith("--dead-letters=") else text
                    for text in arguments
                ]
                ran = timebeam(*arguments)
        expect(ran.code == code_of(json.loads(ran.out)), "exit code", ran)
        rejected = [
            File(file.format, file.suffix, file.arrival_ms, points, [])
            for file in step.files
            if (points := self._store(step, file, create=step.create, only=only))
        ]
        rejected_points = sum(len(file.points) for file in rejected)
        rows_rejected = trouble is not None and trouble.kind == "refuse"
        self._check_letters(letters, step.files, rejected_points, rows_rejected=rows_rejected)
        self._letters[step.name] = letters, rejected

    def _store(
        self, step: Ingest, file: File, *, create: bool, only: Collection[int] | None = None
    ) -> list[Any]:
        append = step.packing == "append"
        return self._model.store(file, append=append, create=create, mark=step.mark, only=only)

    def _ingest_flags(self, step: Ingest) -> list[str]:
        flags = [f"--format={step.files[0].format}", f"--bigtable-writer={step.writer}", "--summary=json"]
        flags += self._tables.chosen
        flags += [f"--packing={step.packing}"] if step.packing else []
        return flags + (["--mark-changed"] if step.mark else [])

    def _replay(self, step: Ingest, letters: Path, rejected: list[File]) -> None:
        self._run_replay(step, letters)
        for file in rejected if step.files[0].format != "avro" else []:  # see docs/reference/reasons.md
            self._store(step, file, create=True)

    def _run_replay(self, step: Ingest, letters: Path) -> None:
        if not list(letters.parent.iterdir()):
            return
        again = self._new_folder() / "dead"
        arguments = [
            *("replay", f"{letters}*", *self._tables.flags, *self._ingest_flags(step)),
            f"--dead-letters={again}",
        ]
        ran = timebeam(*arguments, *(["--auto-create-metrics"] if self._tables.has_uids else []))
        expect(ran.code == code_of(json.loads(ran.out)), "exit code of replay", ran)

    def _check_letters(
        self, letters: Path, inputs: list[File], rejected_points: int, *, rows_rejected: bool
    ) -> None:
        """Every broken line has its letter, every rejected point too, and nothing else has."""
        records = [
            json.loads(line)
            for path in letters.parent.iterdir()
            if path.is_file()
            for line in path.read_text("utf-8").splitlines()
        ]
        if rows_rejected:
            records = [record for record in records if record["stage"] != "write"]
        broken = [line for file in inputs for line in file.broken]
        payloads = [record.get("payload", "") for record in records]
        for line in broken:
            expect(any(line in payload for payload in payloads), "broken line without letter", line)
        reasons = sorted(record["reason"] for record in records)
        right = len(records) == len(broken) + rejected_points
        expect(right, "number of letters", (reasons, broken, rejected_points))

    def _roll_up(self, step: Rollup) -> None:
        start_s, end_s = START_S + step.start * HOUR_S, START_S + step.end * HOUR_S
        self._finish([*self._rollup_command(), f"--start={start_s}", f"--end={end_s}"], step.trouble)
        self._model.roll_up(start_s, end_s)
        self._check_rollups(self._model.rollups)

    def _redo_changed(self) -> None:
        """The intervals of marked hours are done again; what lies between them may be, or stay."""
        self._finish([*self._rollup_command(), "--changed"], None)
        before, computed, stored = self._model.rollups, self._model.computed(), self._tables.rollups()
        expected: dict[RollupKey, Number] = {}
        for key in {*before, *computed, *stored}:
            choices = [computed.get(key)]
            if not self._model.must_be_redone(key):
                choices.insert(0, before.get(key))
            choice = next((number for number in choices if _agree(number, stored.get(key))), choices[0])
            if choice is not None:
                expected[key] = choice
        self._model.rollups = expected
        self._model.marks = set()
        self._check_rollups(expected)

    def _rollup_command(self) -> list[str]:
        letters = self._new_folder() / "dead"
        return ["rollup", *self._tables.flags, f"--rollup-config={self._config}", f"--dead-letters={letters}"]

    def _check_rollups(self, expected: Mapping[RollupKey, Number]) -> None:
        stored = self._tables.rollups()
        for key in sorted({*expected, *stored}):
            expect(
                _agree(expected.get(key), stored.get(key)),
                "rollup",
                f"{key}: stored {stored.get(key)}, expected {expected.get(key)}",
            )

    def _copy(self, step: Copy) -> None:
        start_ms, end_ms = (START_S + hour * HOUR_S for hour in (step.start, step.end))
        start_ms, end_ms = start_ms * 1000, end_ms * 1000 - 1
        letters = self._new_folder() / "dead"
        setup = self._history.setup
        arguments = [
            *("copy", f"--from={setup.layout}", f"--to={setup.copy_layout}", *self._tables.place),
            *(*self._tables.options(), *self._copies.options("to_")),
            *(f"--start={start_ms}", f"--end={end_ms}", f"--dead-letters={letters}"),
            *(["--auto-create-metrics"] if self._copies.has_uids else []),
        ]
        ran = self._finish(arguments, step.trouble)
        rejected = self._model.copy(start_ms, end_ms)
        expect("verified" in ran.out, "proof of the copy", ran)
        expected = _expected(self._model.copied, self._model.copied_histograms)
        _check_content("copy", _content(self._copies), expected)
        expect(bool(rejected) == ("but " in ran.out), "rejections of the copy", (rejected, ran))

    def _export(self, step: Export) -> None:
        """Exports days, over what an earlier step has exported of them, and reads all files."""
        first_s, end_s = (START_S + day * DAY_S for day in (step.first, step.end))
        folder = self._folder / "exported"
        arguments = [
            *("export", *self._tables.flags, f"--start={first_s}", f"--end={end_s}", "--tags=map"),
            *(f"--output={folder}", f"--dead-letters={self._new_folder() / 'dead'}"),
        ]
        self._finish(arguments, step.trouble)
        ran = timebeam(*arguments, "--verify")
        expect(ran.code == 0, "verification of an export", ran)
        self._model.export(first_s * 1000, end_s * 1000)
        _check_content("exported points", files.exported(folder), _expected(self._model.exported, {}))

    def _rename(self, step: Rename) -> None:
        """Renames a tag value; what is ingested again gets a new UID; then the two are merged."""
        if not any(step.value in dict(SERIES[series][1]).values() for series, _ in self._model.points):
            return  # it may have no UID
        old = f"{step.value}.old"
        names = [*self._tables.flags, "--yes"]
        self._finish(["names", "rename", "tagv", step.value, old, *names], step.trouble)
        renamed = {
            (
                (metric, tuple((key, step.value if value == old else value) for key, value in tags)),
                *time,
            ): stored
            for ((metric, tags), *time), stored in _content(self._tables).items()
        }
        expected = _expected(self._model.points, self._model.histograms)
        _check_content("points of a renamed value", renamed, expected)
        self._ingest(*self._written[step.of], None)
        uids = timebeam("suggest", "tagv", step.value, *self._tables.flags).out.splitlines()
        action = "merge" if step.value in uids else "rename"
        self._finish(
            ["names", action, "tagv", old, step.value, *names, f"--rollup-config={self._config}"],
            step.trouble,
        )
        ran = timebeam("names", "fix", *self._tables.flags)
        expect((ran.code, ran.out) == (0, "nothing to do\n"), "names after a merge", ran)

    def _sync_meta(self) -> None:
        self._finish(["meta", "sync", *self._tables.flags, "--count"], None)
        ran = timebeam("series", "*", *self._tables.flags, "--source=meta", "--output=json")
        expect(ran.code == 0, "exit code", ran)
        counts = {
            (entry["metric"], tuple(sorted(entry["tags"].items()))): entry["points"]
            for entry in json.loads(ran.out)
        }
        for position, series in enumerate(SERIES):
            count = sum(moment[0] == position for moment in self._model.points)
            if count:
                expect(counts.get(series) == count, "points counted", (series, counts.get(series), count))

    def _finish(
        self, arguments: list[str], trouble: Trouble | None, before: Callable[[], None] | None = None
    ) -> Ran:
        """Runs a command, and once more if a trouble stopped it.

        Args:
          before: what a process that is killed calls before the command.
        """
        ran, troubled = run(self._emulator, arguments, trouble, before)
        if troubled:
            expect("Traceback" not in ran.err, "stack trace", ran.err)
            if arguments[0] == "compact":
                self._check_points()
            ran = timebeam(*arguments)
            if arguments[0] == "names" and "No such name" in ran.err:
                return ran  # it was stopped after its last change
        expect(ran.code == 0, f"exit code of {arguments[0]}", ran)
        return ran

    def _check_points(self) -> None:
        expected = _expected(self._model.points, self._model.histograms)
        _check_content("points", _content(self._tables), expected)

    def _check_partial(self, sent: list[File]) -> None:
        """After a run that broke off: each instant has its old value or one that was sent."""
        content = _content(self._tables)
        before = {**self._model.points, **self._model.histograms}
        for (series, *moment), values in self._model.candidates(sent).items():
            key = SERIES[series], *moment
            stored = content.pop(key, None)
            allowed = [_stored(moment, value) for value in values]
            new = (series, *moment) not in before
            expect(
                stored in allowed or (new and stored is None),
                "points after a run that failed",
                (key, stored, allowed),
            )
        expect(not content, "points that nobody sent", content)

    def _check_sound(self) -> None:
        for stored in (self._tables, self._copies):
            ran = timebeam("check", *stored.flags)
            expect(ran.code == 0, "corruption", ran)

    def _new_folder(self) -> Path:
        self._runs += 1
        folder = self._folder / f"run{self._runs}"
        folder.mkdir()
        return folder


def settle_at_once() -> None:
    """Cells are as old as a deletion or the archive needs them to be."""
    delete.SETTLED_MS = closed_hours.SETTLED_MS = 0


def _content(tables: Tables) -> dict[Any, Any]:
    """All points by (series, time in ms), and all histograms, whose keys have a third member."""
    return {**tables.content(), **tables.histograms()}


def _expected(points: Mapping[Instant, Version], histograms: Mapping[Column, Version]) -> dict[Any, Any]:
    """The same of a model."""
    return {
        (SERIES[series], *time): _stored(time, version.value)
        for (series, *time), version in {**points, **histograms}.items()
    }


def _stored(time: Sequence[Any], value: Value) -> Any:
    """A value as it is read: of a point, by its time in ms, or of a histogram, by (time, whether in ms)."""
    return number(value) if len(time) == 1 else repr(value)


def _check_content(kind: str, content: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    for key in sorted({*content, *expected}):
        expect(
            content.get(key) == expected.get(key),
            kind,
            f"{key}: stored {content.get(key)}, expected {expected.get(key)}",
        )


def _agree(expected: Number | None, stored: float | None) -> bool:
    if expected is None or stored is None:
        return expected is None and stored is None
    return expected.agrees(stored)
