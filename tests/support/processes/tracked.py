"""Layouts for what happens to worker processes, which import them by their names."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from timebeam.schema.core.point_fragments import Encoded
from timebeam.schema.core.points import PointBatch, SeriesKey
from timebeam.schema.stores.opentsdb.layout import OpenTsdb

FOLDER = "TIMEBEAM_TEST_PIDS"
"""The variable that names the folder in which each process leaves a file, named by its id."""


class Tracked(OpenTsdb):
    """OpenTSDB's layout, with the trace."""

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        (Path(os.environ[FOLDER]) / str(os.getpid())).touch()
        return super().encode(batch, keys)


class Deadly(OpenTsdb):
    """OpenTSDB's layout, by which a process that encodes ends at once."""

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        os._exit(1)


class DeadlyOnce(OpenTsdb):
    """OpenTSDB's layout, by which the first process that encodes ends at once."""

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        try:
            (Path(os.environ[FOLDER]) / f"died-{self.options.table_prefix}").touch(exist_ok=False)
        except FileExistsError:
            return super().encode(batch, keys)
        os._exit(1)


WAITING, FREE = "waiting", "free"


class HeldOnce(OpenTsdb):
    """OpenTSDB's layout; the first process that encodes creates `WAITING` and waits for `FREE`."""

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        folder = Path(os.environ[FOLDER])
        try:
            (folder / WAITING).touch(exist_ok=False)
        except FileExistsError:
            return super().encode(batch, keys)
        while not (folder / FREE).exists():
            time.sleep(0.1)
        return super().encode(batch, keys)
