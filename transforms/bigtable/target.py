"""Which Bigtable to talk to, and one client for it per process."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket

from google.cloud.bigtable.data import BigtableDataClient, Table

EMULATOR_VARIABLE = "BIGTABLE_EMULATOR_HOST"


class BigtableError(RuntimeError):
    """Bigtable cannot be used as it is: one line that says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A Bigtable instance, and the app profile to use it with (None: the default one)."""

    project: str
    instance: str
    app_profile: str | None = None

    def table_name(self, table: str) -> str:
        """The name that the service knows a table by."""
        return f"projects/{self.project}/instances/{self.instance}/tables/{table}"

    def __str__(self) -> str:
        emulator = os.environ.get(EMULATOR_VARIABLE)
        where = f" on the emulator at {emulator}" if emulator else ""
        return f"instance {self.instance} of project {self.project}{where}"


def open_table(target: Target, table: str) -> Table:
    """The table, over this process's one client for the target's project."""
    return _open_table(target, table, os.environ.get(EMULATOR_VARIABLE))


@functools.lru_cache(maxsize=64)
def _open_table(target: Target, table: str, emulator: str | None) -> Table:
    client = _client(target.project, emulator)
    return client.get_table(target.instance, table, app_profile_id=target.app_profile)


@functools.lru_cache(maxsize=4)
def _client(project: str, emulator: str | None) -> BigtableDataClient:
    """One client for each emulator too, so that a process may see several of them in its life."""
    return BigtableDataClient(project=project)


def check_emulator() -> None:
    """Raises BigtableError if an emulator is configured and nothing listens there."""
    emulator = os.environ.get(EMULATOR_VARIABLE)
    if not emulator:
        return
    host, _, port = emulator.rpartition(":")
    try:
        socket.create_connection((host or "localhost", int(port)), timeout=3).close()
    except (OSError, ValueError) as error:
        raise BigtableError(
            f"no Bigtable emulator answers at {EMULATOR_VARIABLE}={emulator} ({error}): "
            "start one with `timebeam emulator`, or unset the variable to use the real service"
        ) from error
