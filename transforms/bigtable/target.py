"""Which Bigtable to talk to, and how: channels, one per process and emulator, and the headers of calls.

The functions import gRPC, and Google's client if there is no emulator: a command that names an instance and
does not reach it does without.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import socket
import urllib.parse
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    import grpc

    from timebeam.transforms.bigtable.retry import Stop

EMULATOR_VARIABLE = "BIGTABLE_EMULATOR_HOST"
NO_MESSAGE_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
"""Options of a gRPC channel."""

_STREAMS = ("MutateRows", "ReadRows", "SampleRowKeys")  # methods with several answers


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
      emulator: HOST:PORT of an emulator; None for that of BIGTABLE_EMULATOR_HOST, and for the real service if
        that is not set. Beam's own writer and the creation of tables look at the variable alone.
    """

    project: str
    instance: str
    app_profile: str | None = None
    stop: Stop | None = dataclasses.field(default=None, compare=False, repr=False)
    emulator: str | None = None

    @property
    def emulator_in_use(self) -> str | None:
        """HOST:PORT of the emulator that is called; None for the real service."""
        return self.emulator or os.environ.get(EMULATOR_VARIABLE)

    def table_name(self, table: str) -> str:
        """The full name of a table."""
        return f"projects/{self.project}/instances/{self.instance}/tables/{table}"

    def __str__(self) -> str:
        emulator = self.emulator_in_use
        where = f" on the emulator at {emulator}" if emulator else ""
        return f"instance {self.instance} of project {self.project}{where}"


_NAME = re.compile(r"projects/([^/]+)/instances/([^/]+)(?:/appProfiles/([^/]+))?")


def as_target(name: Target | str) -> Target:
    """The target of a resource name; a target is returned as it is.

    >>> as_target("projects/my-project/instances/metrics/appProfiles/batch")
    Target(project='my-project', instance='metrics', app_profile='batch', emulator=None)

    Raises:
      ValueError: the text names no instance and no app profile.
    """
    if isinstance(name, Target):
        return name
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"target {name!r}: give projects/PROJECT/instances/INSTANCE, perhaps with /appProfiles/PROFILE"
        )
    project, instance, profile = match.groups()
    return Target(project, instance, profile)


@functools.cache
def caller() -> tuple[str, str]:
    """The metadata that names the caller."""
    from google.api_core.client_info import ClientInfo

    return "x-goog-api-client", ClientInfo(user_agent="timebeam").to_user_agent()


@functools.lru_cache(maxsize=64)
def call_headers(target: Target, table: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call of the data API: routing, and the name of the caller."""
    routing = {"table_name": target.table_name(table), "app_profile_id": target.app_profile or ""}
    return ("x-goog-request-params", urllib.parse.urlencode(routing, safe="/")), caller()


class _ServiceMethod(NamedTuple):
    """A method and its channel: a channel without references is closed."""

    call: Any
    channel: grpc.Channel


def method(target: Target, name: str, *options: tuple[str, Any]) -> Any:
    """A method of the data API, to be called with a message of `DATA_API`, or with bytes.

    It answers with such messages; ReadRows with serialized ones, which `resumed` parses.

    Args:
      options: of its channel.
    """
    return _method(target.emulator_in_use, name, *options).call


@functools.lru_cache(maxsize=32)
def _method(emulator: str | None, name: str, *options: tuple[str, Any]) -> _ServiceMethod:
    from timebeam.transforms.bigtable.protobuf_classes import DATA_API

    channel = _channel(emulator, *options)
    call = channel.unary_stream if name in _STREAMS else channel.unary_unary
    parse = None if name == "ReadRows" else DATA_API[f"{name}Response"].FromString
    return _ServiceMethod(call(f"/google.bigtable.v2.Bigtable/{name}", _serialized, parse), channel)


def _serialized(request: Any) -> bytes:
    return request if isinstance(request, bytes) else bytes(request.SerializeToString())


@functools.lru_cache(maxsize=8)
def _channel(emulator: str | None, *options: tuple[str, Any]) -> grpc.Channel:
    """A channel to the data API: one per process, emulator and options of gRPC.

    Google's client finds the endpoint, credentials and certificates of the service; it takes half as long to
    import as all else that a read needs. Pings detect a dead connection.
    """
    import grpc

    if emulator:
        return grpc.insecure_channel(emulator, [*NO_MESSAGE_LIMIT, *options])
    from google.cloud.bigtable_v2 import BigtableClient
    from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport

    pings = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]

    def secure_channel(host: str, **arguments: Any) -> grpc.Channel:
        arguments["options"] = [*NO_MESSAGE_LIMIT, *pings, *options]
        return BigtableGrpcTransport.create_channel(host, **arguments)

    client = BigtableClient(
        transport=lambda **arguments: BigtableGrpcTransport(**arguments, channel=secure_channel)
    )
    return cast(BigtableGrpcTransport, client.transport).grpc_channel


def check_emulator(target: Target) -> None:
    """Raises BigtableError if an emulator is configured and nothing listens there."""
    emulator = target.emulator_in_use
    if not emulator:
        return
    host, _, port = emulator.rpartition(":")
    try:
        socket.create_connection((host or "localhost", int(port)), timeout=3).close()
    except (OSError, ValueError) as error:
        origin = "" if target.emulator else f"{EMULATOR_VARIABLE}="
        raise BigtableError(
            f"no Bigtable emulator answers at {origin}{emulator} ({error}): "
            "start one with `timebeam emulator`, or unset the variable to use the real service"
        ) from error
