"""Tables over Google's data client, which the product does without."""

from __future__ import annotations

import functools
import os

from google.cloud.bigtable.data import BigtableDataClient, Table

from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE, Target


def open_table(target: Target, table: str) -> Table:
    """The table, over this process's one client for the target's project."""
    return _open_table(target, table, os.environ.get(EMULATOR_VARIABLE))


@functools.cache
def _open_table(target: Target, table: str, emulator: str | None) -> Table:
    return _client(target.project, emulator).get_table(
        target.instance, table, app_profile_id=target.app_profile
    )


@functools.cache
def _client(project: str, emulator: str | None) -> BigtableDataClient:
    """A client reads the emulator's address once, so each address has a client of its own."""
    return BigtableDataClient(project=project)
