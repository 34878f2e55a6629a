"""Layouts for what happens to worker processes, which import them by their names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from timebeam.schema.layouts import Encoded, Packing, SeriesKey
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.schema.points import PointBatch

FOLDER = "TIMEBEAM_TEST_PIDS"
"""The variable that names the folder in which each process leaves a file, named by its id."""


class Tracked(OpenTsdb):
    """OpenTSDB's layout, with the trace."""

    def encode(
        self, batch: PointBatch, keys: Sequence[SeriesKey | None], packing: Packing | None = None
    ) -> Encoded:
        (Path(os.environ[FOLDER]) / str(os.getpid())).touch()
        return super().encode(batch, keys, packing)


class Deadly(OpenTsdb):
    """OpenTSDB's layout, by which a process that encodes ends at once."""

    def encode(
        self, batch: PointBatch, keys: Sequence[SeriesKey | None], packing: Packing | None = None
    ) -> Encoded:
        os._exit(1)


class DeadlyOnce(OpenTsdb):
    """OpenTSDB's layout, by which the first process that encodes ends at once."""

    def encode(self, batch: PointBatch, keys: Sequence[SeriesKey | None]) -> Encoded:
        try:
            (Path(os.environ[FOLDER]) / f"died-{self.options.table_prefix}").touch(exist_ok=False)
        except FileExistsError:
            return super().encode(batch, keys)
        os._exit(1)
