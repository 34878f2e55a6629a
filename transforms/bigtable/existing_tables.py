"""Which tables and families an instance has: what every command asks before it reads or writes.

The calls are plain protobuf (google/bigtable/admin/v2/bigtable_table_admin.proto): the admin client takes
half a second to import.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import grpc
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError

from timebeam.transforms.bigtable.protobuf_classes import message_classes
from timebeam.transforms.bigtable.retry import ATTEMPT_SECONDS, retried
from timebeam.transforms.bigtable.target import (
    EMULATOR_VARIABLE,
    NO_MESSAGE_LIMIT,
    BigtableError,
    NoPermissionError,
    Target,
    caller,
    check_emulator,
)

_SERVICE = "google.bigtable.admin.v2.BigtableTableAdmin"
_HOST = "bigtableadmin.googleapis.com:443"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SECONDS = 60.0  # how long a call is repeated, as by the admin client
_NAME_ONLY, _SCHEMA_VIEW = 1, 2

_PROTO = """
    message GetTableRequest { string name = 1; int32 view = 2; }
    message Family { string name = 1; }  // an entry of the map `column_families`
    message Table { string name = 1; repeated Family families = 3; }
    message ListTablesRequest { string parent = 1; int32 view = 2; string page_token = 3; }
    message ListTablesResponse { repeated Table tables = 1; string next_page_token = 2; }
"""


class TableFamilies(Protocol):
    """A table and its families."""

    @property
    def name(self) -> str:
        """The table's name, without project and instance."""

    @property
    def families(self) -> Mapping[str, int]:
        """By family, how many versions of a cell garbage collection keeps."""


def check_tables(target: Target, specs: Sequence[TableFamilies], create_command: str) -> None:
    """Raises BigtableError, in one line, unless all tables and families exist.

    Args:
      create_command: for the error: the command that creates what is missing.
    """
    missing = []
    for spec in specs:
        families = _families(target, spec.name)
        if families is None:
            missing.append(f"table {spec.name}")
        else:
            missing += [
                f"family {name} of table {spec.name}" for name in spec.families if name not in families
            ]
    if missing:
        raise BigtableError(
            f"missing in {target}: {', '.join(missing)}. Create what is missing with: {create_command}"
        )


def table_exists(target: Target, name: str) -> bool:
    """Whether the instance has a table of this name.

    Raises:
      BigtableError: the instance cannot be reached.
    """
    return _families(target, name) is not None


def table_names(target: Target) -> list[str]:
    """The names of all tables of the instance.

    Raises:
      BigtableError: the instance cannot be reached.
    """
    parent = target.table_name("").removesuffix("/tables/")
    names: list[str] = []
    token = ""
    with admin_errors(target):
        while True:
            page = _call(
                target, "ListTables", "ListTablesResponse", parent=parent, view=_NAME_ONLY, page_token=token
            )
            names += [table.name.rpartition("/")[2] for table in page.tables]
            token = page.next_page_token
            if not token:
                return sorted(names)


def recent_table_names(target: Target) -> Sequence[str]:
    """As `table_names`, at most a minute old; tables that this process creates or drops are not missed."""
    return _names_in_minute(target, int(time.monotonic() // 60))


@functools.lru_cache(maxsize=8)
def _names_in_minute(target: Target, minute: int) -> Sequence[str]:
    return tuple(table_names(target))


def forget_table_names() -> None:
    """Makes `recent_table_names` ask again, after this process has created or dropped a table."""
    _names_in_minute.cache_clear()


@contextlib.contextmanager
def admin_errors(target: Target) -> Iterator[None]:
    """Turns errors that a user can fix into a BigtableError of one line."""
    try:
        yield
    except exceptions.PermissionDenied as error:
        raise NoPermissionError(f"no permission on {target}: {error.message}") from error
    except (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded, exceptions.RetryError) as error:
        raise BigtableError(f"{target} does not answer: {error}") from error
    except DefaultCredentialsError as error:
        raise BigtableError(
            "no Google Cloud credentials: run `gcloud auth application-default login`, or set "
            f"{EMULATOR_VARIABLE} to use a local emulator (see `timebeam emulator`)"
        ) from error


def _families(target: Target, table: str) -> list[str] | None:
    """The families of a table; None if the table does not exist."""
    with admin_errors(target):
        try:
            described = _call(target, "GetTable", "Table", name=target.table_name(table), view=_SCHEMA_VIEW)
        except exceptions.NotFound:
            return None
    return [family.name for family in described.families]


def _call(target: Target, method: str, response: str, **fields: Any) -> Any:
    """The response of a method; repeats the call while the service does not answer.

    Raises:
      BigtableError: the emulator does not answer.
      GoogleAPICallError: another error.
    """
    check_emulator(target)
    stub = _channel(target.emulator_in_use).unary_unary(
        f"/{_SERVICE}/{method}",
        request_serializer=_messages()[f"{method}Request"].SerializeToString,
        response_deserializer=_messages()[response].FromString,
    )
    request = _messages()[f"{method}Request"](**fields)
    routing = next((name, fields[name]) for name in ("name", "parent") if name in fields)
    headers = (("x-goog-request-params", "=".join(routing)), caller())
    return retried(lambda: stub(request, timeout=ATTEMPT_SECONDS, metadata=headers), _SECONDS)


@functools.lru_cache(maxsize=4)
def _channel(emulator: str | None) -> grpc.Channel:
    """The channel to the service of tables: one per process and emulator."""
    if emulator:
        return grpc.insecure_channel(emulator, options=NO_MESSAGE_LIMIT)
    from google.api_core import grpc_helpers  # takes a tenth of a second

    return grpc_helpers.create_channel(_HOST, default_scopes=[_SCOPE], options=NO_MESSAGE_LIMIT)


@functools.cache
def _messages() -> dict[str, Any]:
    """The classes of `_PROTO`, by name."""
    return message_classes(_PROTO)
