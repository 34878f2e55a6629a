"""Which Bigtable to talk to, and its clients: one per process and emulator.

The functions import Google's clients, which takes most of a second: a command that names an instance and does
not reach it does without.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.api_core.gapic_v1.client_info import ClientInfo
    from google.cloud.bigtable_v2 import BigtableClient

    from timebeam.transforms.bigtable.retry import Stop

EMULATOR_VARIABLE = "BIGTABLE_EMULATOR_HOST"
NO_MESSAGE_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
"""Options of a gRPC channel."""


class BigtableError(RuntimeError):
    """Bigtable cannot be used: one line that says why, and what to do."""


class NoPermissionError(BigtableError):
    """The caller lacks a permission."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A Bigtable instance.

    Attributes:
      app_profile: to use the instance with; None for the default one.
      stop: ends the reads of one request; None where nothing does. It is no part of which instance this is.
    """

    project: str
    instance: str
    app_profile: str | None = None
    stop: Stop | None = dataclasses.field(default=None, compare=False, repr=False)

    def table_name(self, table: str) -> str:
        """The full name of a table."""
        return f"projects/{self.project}/instances/{self.instance}/tables/{table}"

    def __str__(self) -> str:
        emulator = os.environ.get(EMULATOR_VARIABLE)
        where = f" on the emulator at {emulator}" if emulator else ""
        return f"instance {self.instance} of project {self.project}{where}"


@functools.cache
def client_info() -> ClientInfo:
    """The name under which the clients call."""
    from google.api_core.gapic_v1.client_info import ClientInfo

    return ClientInfo(user_agent="timebeam")


def raw_client(target: Target) -> BigtableClient:
    """The generated client, whose transport takes and gives plain protobuf messages."""
    return _raw_client(target.project, os.environ.get(EMULATOR_VARIABLE))


@functools.lru_cache(maxsize=4)
def _raw_client(project: str, emulator: str | None) -> BigtableClient:
    import grpc
    from google.cloud.bigtable_v2 import BigtableClient
    from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport

    if emulator:
        channel = grpc.insecure_channel(emulator, options=NO_MESSAGE_LIMIT)
        return BigtableClient(transport=BigtableGrpcTransport(channel=channel))
    return BigtableClient(client_info=client_info())


@functools.lru_cache(maxsize=64)
def call_headers(target: Target, table: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call by the generated client's transport: routing, and the name of the caller."""
    from google.api_core.gapic_v1 import routing_header

    routing = {"table_name": target.table_name(table), "app_profile_id": target.app_profile or ""}
    return routing_header.to_grpc_metadata(routing), client_info().to_grpc_metadata()


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
