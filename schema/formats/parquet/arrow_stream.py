"""Arrow IPC streams from senders that are not trusted: what they need in memory is known before it is read.

A stream may be compressed, and columns of nulls have rows without bytes: a few kilobytes can hold billions of
rows. The metadata of each message is a flatbuffer, of which these fields are read (format/Message.fbs):

| table | field | |
|---|---|---|
| Message | 2 | header: RecordBatch or DictionaryBatch |
| DictionaryBatch | 1 | data: RecordBatch |
| RecordBatch | 0, 3 | rows, int64; compression |
"""

from __future__ import annotations

import struct

import pyarrow as pa

_HEADER, _DATA, _ROWS, _COMPRESSION = 2, 1, 0, 3


def read_stream(text: bytes, most_rows: int) -> pa.Table:
    """The rows of a stream.

    Raises:
      pyarrow.ArrowException, OSError: it is damaged, compressed, or has more rows.
    """
    rows = 0
    messages = pa.ipc.MessageReader.open_stream(text)
    for message in _messages(messages):
        if message.type not in ("record batch", "dictionary"):
            continue
        try:
            batch_rows, is_compressed = _batch(memoryview(message.metadata), message.type == "dictionary")
        except (struct.error, IndexError) as error:
            raise OSError("damaged metadata of a message") from error
        if is_compressed:
            raise OSError("compressed buffers, which are not read: compress the whole message")
        rows += batch_rows if message.type == "record batch" else 0
        if not 0 <= rows <= most_rows:
            raise OSError(f"it has {rows:,} rows; at most {most_rows:,} are read")
    table = pa.ipc.open_stream(text).read_all()
    table.validate(full=True)
    return table


def _messages(reader: pa.ipc.MessageReader) -> list[pa.Message]:
    """The messages of a stream, whose bodies are views of it."""
    messages = []
    while True:
        try:
            messages.append(reader.read_next_message())
        except StopIteration:
            return messages


def _batch(metadata: memoryview, is_dictionary: bool) -> tuple[int, bool]:
    """(rows of the batch of a message, whether its buffers are compressed)."""
    (message,) = struct.unpack_from("<I", metadata)
    batch = _table(metadata, _field(metadata, message, _HEADER))
    if is_dictionary:
        batch = _table(metadata, _field(metadata, batch, _DATA))
    rows = _field(metadata, batch, _ROWS)
    count = struct.unpack_from("<q", metadata, rows)[0] if rows else 0
    return count, _field(metadata, batch, _COMPRESSION) > 0


def _table(metadata: memoryview, position: int) -> int:
    """Where the table is to which an offset points."""
    return position + int(struct.unpack_from("<I", metadata, position)[0])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it is missing."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    (size,) = struct.unpack_from("<H", metadata, vtable)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
    return table + offset if offset else 0
