"""Our message classes and channels against those of Google's client."""

from __future__ import annotations

from typing import Any

import google.auth
import google.rpc.status_pb2
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.bigtable_admin_v2 import types as admin_types
from google.cloud.bigtable_v2 import types

from timebeam.transforms.bigtable import chunk_rows, existing_tables, target
from timebeam.transforms.bigtable.protobuf_classes import DATA_API, message_classes

NAMED_OTHERWISE: dict[str, Any] = {
    "Chain": types.RowFilter.Chain,
    "SetCell": types.Mutation.SetCell,
    "DeleteFromColumn": types.Mutation.DeleteFromColumn,
    "Mutations": types.MutateRowsRequest.Entry,
    "Result": types.MutateRowsResponse.Entry,
}


@pytest.mark.parametrize("name", DATA_API)
def test_fields_are_those_of_googles_messages(name: str) -> None:
    if name == "Status":
        google_fields = google.rpc.status_pb2.Status.DESCRIPTOR.fields_by_name
    else:
        message = NAMED_OTHERWISE.get(name) or getattr(types, name)
        google_fields = message.pb().DESCRIPTOR.fields_by_name
    for field in DATA_API[name].DESCRIPTOR.fields:
        same = google_fields[field.name]
        assert (field.number, field.type, field.is_repeated) == (same.number, same.type, same.is_repeated)


def test_messages_of_tables_are_read_by_googles_classes() -> None:
    classes = message_classes(existing_tables._PROTO)
    request = classes["GetTableRequest"](name="t", view=existing_tables._SCHEMA_VIEW)
    read = admin_types.GetTableRequest.deserialize(request.SerializeToString())
    assert (read.name, read.view) == ("t", admin_types.Table.View.SCHEMA_VIEW)
    table = admin_types.Table(name="t", column_families={"f": admin_types.ColumnFamily()})
    parsed = classes["Table"].FromString(admin_types.Table.serialize(table))
    assert [family.name for family in parsed.families] == ["f"]


def test_chunks_are_googles_chunks() -> None:
    google_fields = types.ReadRowsResponse.CellChunk.pb().DESCRIPTOR.fields_by_name
    for field in chunk_rows.chunk_class().DESCRIPTOR.fields:
        assert field.number == google_fields[field.name].number


def test_without_an_emulator_the_channel_is_googles_with_its_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It opens no connection before the first call."""
    asked: list[Any] = []

    def default(*_: Any, **named: Any) -> tuple[AnonymousCredentials, str]:
        asked.append(named)
        return AnonymousCredentials(), "project"

    monkeypatch.setattr(google.auth, "default", default)
    monkeypatch.delenv(target.EMULATOR_VARIABLE, raising=False)
    target._method.cache_clear()
    target._channel.cache_clear()
    call = target.method(target.Target("p", "i"), "ReadRows", ("grpc.primary_user_agent", "timebeam"))
    assert call is target.method(target.Target("p", "i"), "ReadRows", ("grpc.primary_user_agent", "timebeam"))
    assert len(asked) == 1
    target._method.cache_clear()
    target._channel.cache_clear()
