"""Protobuf classes of the fields in use, where the clients' own are slow to import or to read.

All other fields of a message are unknown fields to them.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

_MESSAGE = re.compile(r"message (\w+) \{(.*?)\}", re.DOTALL)
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")


def message_classes(proto: str) -> dict[str, Any]:
    """By name the classes of the messages of a .proto file, none of which is declared inside of another.

    All fields are optional or repeated, as of proto2: one with the default value is sent if it was set.
    """
    file = FileDescriptorProto(name="timebeam.proto", package="timebeam", syntax="proto2")
    names = []
    for name, body in _MESSAGE.findall(proto):
        names.append(name)
        message = file.message_type.add(name=name)
        for repeated, kind, field, number in _FIELD.findall(body):
            scalar = FieldDescriptorProto.Type.DESCRIPTOR.values_by_name.get(f"TYPE_{kind.upper()}")
            message.field.add(
                name=field,
                number=int(number),
                type=FieldDescriptorProto.TYPE_MESSAGE if scalar is None else scalar.number,
                label=FieldDescriptorProto.LABEL_REPEATED
                if repeated
                else FieldDescriptorProto.LABEL_OPTIONAL,
                type_name=f".timebeam.{kind}" if scalar is None else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"timebeam.{name}"))
        for name in names
    }


DATA_API = message_classes("""
    message RowRange {
        bytes start_key_closed = 1;
        bytes start_key_open = 2;
        bytes end_key_open = 3;
    }
    message RowSet { repeated bytes row_keys = 1; repeated RowRange row_ranges = 2; }
    message ReadRowsRequest {
        string table_name = 1;
        RowSet rows = 2;
        RowFilter filter = 3;
        int64 rows_limit = 4;
        string app_profile_id = 5;
    }
    message FeatureFlags { bool last_scanned_row_responses = 4; }
    message SampleRowKeysRequest { string table_name = 1; string app_profile_id = 2; }
    message SampleRowKeysResponse { bytes row_key = 1; int64 offset_bytes = 2; }

    message TimestampRange { int64 start_timestamp_micros = 1; int64 end_timestamp_micros = 2; }
    message ColumnRange {
        string family_name = 1;
        bytes start_qualifier_closed = 2;
        bytes end_qualifier_closed = 4;
        bytes end_qualifier_open = 5;
    }
    message ValueRange { bytes start_value_closed = 1; bytes end_value_closed = 3; }
    message Chain { repeated RowFilter filters = 1; }
    message RowFilter {
        Chain chain = 1;
        bytes row_key_regex_filter = 4;
        bytes column_qualifier_regex_filter = 6;
        ColumnRange column_range_filter = 7;
        TimestampRange timestamp_range_filter = 8;
        int32 cells_per_row_limit_filter = 11;
        int32 cells_per_column_limit_filter = 12;
        bool strip_value_transformer = 13;
        ValueRange value_range_filter = 15;
    }

    message SetCell {
        string family_name = 1;
        bytes column_qualifier = 2;
        int64 timestamp_micros = 3;
        bytes value = 4;
    }
    message DeleteFromColumn {
        string family_name = 1;
        bytes column_qualifier = 2;
        TimestampRange time_range = 3;
    }
    message Mutation { SetCell set_cell = 1; DeleteFromColumn delete_from_column = 2; }
    message Mutations { bytes row_key = 1; repeated Mutation mutations = 2; }
    message Status { int32 code = 1; string message = 2; }
    message Result { int64 index = 1; Status status = 2; }
    message MutateRowsResponse { repeated Result entries = 1; }
    message CheckAndMutateRowRequest {
        string table_name = 1;
        bytes row_key = 2;
        repeated Mutation true_mutations = 4;
        repeated Mutation false_mutations = 5;
        RowFilter predicate_filter = 6;
        string app_profile_id = 7;
    }
    message CheckAndMutateRowResponse { bool predicate_matched = 1; }

    message ReadModifyWriteRule {
        string family_name = 1;
        bytes column_qualifier = 2;
        bytes append_value = 3;
        int64 increment_amount = 4;
    }
    message ReadModifyWriteRowRequest {
        string table_name = 1;
        bytes row_key = 2;
        repeated ReadModifyWriteRule rules = 3;
        string app_profile_id = 4;
    }
    message Cell { int64 timestamp_micros = 1; bytes value = 2; }
    message Column { bytes qualifier = 1; repeated Cell cells = 2; }
    message Family { string name = 1; repeated Column columns = 2; }
    message Row { bytes key = 1; repeated Family families = 2; }
    message ReadModifyWriteRowResponse { Row row = 1; }
""")
"""Of google/bigtable/v2/bigtable.proto and data.proto, where `Mutations` and `Result` are Entry."""
