"""Reads files in blocks of whole records, from any file system that Beam knows.

A plain file of lines is read in spans of several blocks. A span has the lines that begin in it, so each line
is in exactly one block, whichever worker reads it. A compressed file, or a file of another framing, is one
span.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from typing import BinaryIO, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.filesystem import CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import DoOutputsTuple, PBegin

from timebeam.schema.bits.compression import LARGEST, CorruptDataError, TruncatedError, content, is_compressed
from timebeam.schema.bits.json_text import starts_document
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import source_checksum
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.formats import Framing, Message
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import RejectedOutput, reject, rejecting
from timebeam.transforms.input import cut_lines
from timebeam.transforms.input.cut_json import JsonCutter
from timebeam.transforms.input.cut_lines import Cutter, DelimitedCutter, LineCutter


class AvroCutter:
    """Cuts the bytes of one file; see `ContainerCutter`."""

    def __init__(self, path: str, modified_ms: int) -> None:
        from timebeam.schema.formats.avro.container import ContainerCutter  # others read no Avro

        self._path, self._modified_ms = path, modified_ms
        self._cutter = ContainerCutter(BLOCK_BYTES)

    @property
    def rest(self) -> bytes:
        """The pending bytes."""
        return self._cutter.rest

    @property
    def offset(self) -> int:
        """Where `rest` begins in the file."""
        return self._cutter.offset

    def add(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with `data`.

        Raises:
          CorruptDataError: the container is corrupt; all blocks before have been yielded.
        """
        yield from self._messages(self._cutter.add(data))

    def finish(self) -> Iterator[Message]:
        """The last message.

        Raises:
          TruncatedError: the file ends inside its header or a block.
        """
        yield from self._messages(self._cutter.finish())

    def _messages(self, containers: Iterable[tuple[int, bytes]]) -> Iterator[Message]:
        for offset, container in containers:
            yield Message(container, self._modified_ms, self._path, offset)
        from timebeam.schema.formats.avro.container import EarlyEndError

        corruption = self._cutter.corruption
        if corruption:
            raise (
                TruncatedError(str(corruption))
                if isinstance(corruption, EarlyEndError)
                else CorruptDataError(str(corruption))
            )


BLOCK_BYTES = 4 << 20
"""Size of a block; its last line may end behind it."""

ROW_GROUP_BYTES = 1 << 30
"""The largest row group of a Parquet file that is read, decompressed."""

BATCH_ROWS = 1 << 16
"""Rows of a message that is cut from a row group."""

_BLOCKS_A_SPAN = 16  # read by one worker, which opens the file once


class FileSpan(NamedTuple):
    """The records of a file that begin in bytes [start, end).

    Attributes:
        Of a Parquet file: its row groups [start, end).
      end: -1 for a whole file.
      modified_ms: modification time of the file: the arrival of its points.
    """

    path: str
    start: int
    end: int
    modified_ms: int

    def message(self) -> Message:
        """An empty message with the source and arrival of the blocks."""
        return Message(b"", self.modified_ms, self.path, self.start)


def match(patterns: Iterable[str]) -> list[FileMetadata]:
    """The files that match any of the patterns, each once, by path; without folders.

    Raises:
      OSError: a pattern matches no file, or only folders, or a file that cannot be read or is dated before
        1970, or its file system is not available.
    """
    files_by_path: dict[str, FileMetadata] = {}
    for pattern in patterns:
        try:
            # Beam finds no file by a pattern without a folder.
            named = pattern if "/" in pattern else os.path.join(os.curdir, pattern)
            matched = FileSystems.match([named])[0].metadata_list
        except ValueError as error:  # no such file system, or its dependency is not installed
            raise FileNotFoundError(f"{pattern}: {error}") from error
        files = [file for file in matched if not os.path.isdir(file.path)]
        if not files and any(os.path.isdir(file.path) for file in matched):
            raise IsADirectoryError(f"{pattern} is a folder: name its files, as {pattern.rstrip('/')}/*")
        if not files:
            raise FileNotFoundError(f"no file matches {pattern}")
        for file in files:
            _check(file)
        files_by_path.update((file.path, file) for file in files)
    return [files_by_path[path] for path in sorted(files_by_path)]


def _check(file: FileMetadata) -> None:
    """Raises OSError if a local file cannot be read, or has a modification time before 1970."""
    if FileSystems.get_scheme(file.path) is not None:
        return
    if not os.access(file.path, os.R_OK):
        raise PermissionError(f"{file.path} cannot be read: permission denied")
    if file.last_updated_in_seconds * 1000 < 1:
        raise OSError(
            f"{file.path}: its modification time is not after 1970-01-01, but becomes the timestamp of its "
            "cells: set it with `touch`"
        )


def spans(file: FileMetadata, framing: Framing = Framing.LINES) -> Iterator[FileSpan]:
    """The spans of a file, which different workers may read.

    Raises:
      ValueError: the file system gives no modification time, so later corrections could not win.
    """
    modified_ms = _modified_ms(file)
    if modified_ms <= 0:
        raise ValueError(f"{file.path}: its file system gives no modification time")
    if framing is Framing.PARQUET:
        for number in range(_row_groups(file.path)):
            yield FileSpan(file.path, number, number + 1, modified_ms)
        return
    is_whole = framing in (Framing.AVRO, Framing.DELIMITED, Framing.PROTOBUF) or is_compressed(file.path)
    if is_whole or _may_be_document(file, framing):
        yield FileSpan(file.path, 0, -1, modified_ms)
        return
    step = BLOCK_BYTES * _BLOCKS_A_SPAN
    for start in range(0, file.size_in_bytes, step):
        yield FileSpan(file.path, start, min(start + step, file.size_in_bytes), modified_ms)


def _modified_ms(file: FileMetadata) -> int:
    """The arrival of the points of a file."""
    return int(file.last_updated_in_seconds * 1000)


def _may_be_document(file: FileMetadata, framing: Framing) -> bool:
    """Whether a plain file may be a JSON document over several lines, which is read from its start.

    A file longer than the longest document is opened to find out.
    """
    if framing is not Framing.JSON or file.size_in_bytes <= LARGEST:
        return framing is Framing.JSON
    with FileSystems.open(file.path, compression_type=CompressionTypes.UNCOMPRESSED) as opened:
        return starts_document(opened.read(cut_lines.LINE_BYTES + 1), cut_lines.LINE_BYTES)


def blocks_by_arrival(
    files: Iterable[FileMetadata], framing: Framing
) -> Generator[Message | Rejected, None, None]:
    """The blocks of all files, each after those that it wins over, and rejections as in `blocks`.

    Of points with the same time the one from the newest file wins; of files of one time the one whose path
    has the greatest checksum; within a file the later one (`timebeam.schema.stores`).
    """
    in_order = sorted(files, key=lambda file: (_modified_ms(file), source_checksum(file.path)))
    for file in in_order:
        metrics.plan_work(file.size_in_bytes)
    for file in in_order:
        for span in spans(file, framing):
            yield from blocks(span, framing)


def blocks(span: FileSpan, framing: Framing = Framing.LINES) -> Iterator[Message | Rejected]:
    """The blocks of a span, and a rejection for bytes that cannot be read."""
    with FileSystems.open(span.path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        if framing is Framing.PARQUET:
            yield from _row_group_blocks(span, file)
            return
        if span.end >= 0:
            read = _plain_blocks(span, file)
        else:
            read = _whole_file_blocks(span, file, _cutter(span, framing))
        position = span.start
        for block in read:
            yield block
            position, before = file.tell(), position
            metrics.work_done(position - before)  # compressed bytes of a compressed file


def _row_groups(path: str) -> int:
    """The number of row groups of a Parquet file; 1 if none of them can be read, for one rejection."""
    from timebeam.schema.formats.parquet.footer import read_footer  # others read no Parquet

    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        try:
            return len(read_footer(file).group_rows)
        except OSError:
            return 1


def _row_group_blocks(span: FileSpan, file: BinaryIO) -> Iterator[Message | Rejected]:
    """The rows of a row group, and a rejection if it is corrupt or too large.

    Args:
      span: its start is the number of the row group.
    """
    from timebeam.schema.formats.parquet.footer import read_footer
    from timebeam.schema.formats.parquet.parquet_columns import batch_bytes, cut
    from timebeam.schema.formats.parquet.row_groups import RowGroups

    row = 0
    try:
        footer = read_footer(file)
        row = sum(footer.group_rows[: span.start])
        groups = RowGroups(file, footer, [span.start], ROW_GROUP_BYTES)
        for batch in groups.batches(BATCH_ROWS):
            for rows in cut(batch, LARGEST):
                yield Message(batch_bytes(rows), span.modified_ms, span.path, row)
                row += len(rows)
        metrics.work_done(groups.stored)
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        why = f"row group {span.start}: {error}: its rows from {row} of the file on are not stored"[:400]
        yield Rejected(b"", Reason.CORRUPT_FILE, why, Stage.READ, span.path, row)


def _cutter(span: FileSpan, framing: Framing) -> Cutter:
    if framing is Framing.AVRO:
        return AvroCutter(span.path, span.modified_ms)
    if framing in (Framing.DELIMITED, Framing.PROTOBUF):
        return DelimitedCutter(span.message(), may_be_json=framing is Framing.DELIMITED)
    if framing is Framing.JSON:
        return JsonCutter(span.message(), BLOCK_BYTES)
    return LineCutter(span.message())


def _plain_blocks(span: FileSpan, file: BinaryIO) -> Iterator[Message | Rejected]:
    """Blocks of the lines that begin in a span of a plain file."""
    cutter = LineCutter(span.message())
    if span.start > 0:
        file.seek(span.start - 1)
        skipped = _skip_line(file, span.end - span.start + 1)
        if skipped is None:
            return
        cutter.offset = span.start - 1 + skipped
        file.seek(cutter.offset)
    while cutter.offset + len(cutter.rest) < span.end:
        data = file.read(min(BLOCK_BYTES, span.end - cutter.offset - len(cutter.rest)))
        if not data:
            break
        yield from cutter.add(data)
    # The last line of the span may end behind it.
    while cutter.open_line:
        data = file.read(1 << 16)
        end = data.find(b"\n") + 1
        yield from cutter.add(data[:end] if end else data)
        if end or not data:
            break
    yield from cutter.finish()


def _whole_file_blocks(span: FileSpan, file: BinaryIO, cutter: Cutter) -> Iterator[Message | Rejected]:
    """Blocks of a whole file; the readable ones of a truncated or corrupt file, and a rejection."""
    try:
        for data in content(span.path, file, BLOCK_BYTES):
            yield from cutter.add(data)
        yield from cutter.finish()
    except (TruncatedError, CorruptDataError) as error:
        if isinstance(cutter, JsonCutter):
            yield from cutter.settle()
        truncated = isinstance(error, TruncatedError)
        reason = Reason.TRUNCATED_FILE if truncated else Reason.CORRUPT_FILE
        message = f"{error}: records before byte {cutter.offset} are stored; the rest is not"
        yield Rejected(
            cutter.rest[: cut_lines.LINE_BYTES], reason, message, Stage.READ, span.path, cutter.offset
        )


def _skip_line(file: BinaryIO, limit: int) -> int | None:
    """The number of bytes up to the end of the next newline; None if it is not within `limit` bytes."""
    scanned = 0
    while scanned < limit:
        data = file.read(min(1 << 16, limit - scanned))
        if not data:
            return None
        end = data.find(b"\n") + 1
        if end:
            return scanned + end
        scanned += len(data)
    return None


def _planned_spans(patterns: list[str], framing: Framing) -> Iterator[FileSpan]:
    """The spans of the files of some patterns, counted as planned work."""
    for file in match(patterns):
        metrics.plan_work(file.size_in_bytes)
        yield from spans(file, framing)


def counted(blocks: Iterable[Message | Rejected]) -> Iterator[Message | RejectedOutput]:
    """Blocks, counted as read, and rejections as elements of `REJECTED`."""
    for block in blocks:
        if isinstance(block, Rejected):
            metrics.count("points_read")
            yield reject(block)
        else:
            metrics.count("messages_read")
            metrics.count("bytes_read", len(block.text))
            yield block


def _counted_blocks(span: FileSpan, framing: Framing) -> Iterator[Message | RejectedOutput]:
    """The blocks of a span, counted; unreadable bytes to `REJECTED`."""
    return counted(blocks(span, framing))


class ReadBlocks(beam.PTransform):  # type: ignore[type-arg]
    """Reads files: a pipeline in, `Message` blocks of whole records out, unreadable bytes to `REJECTED`.

    Args:
      patterns: file patterns; a file that matches several is read once.
      framing: of the files' format; not `Framing.NONE`.
    """

    def __init__(self, patterns: Iterable[str], framing: Framing = Framing.LINES) -> None:
        super().__init__()
        self.patterns = list(patterns)
        self.framing = framing

    def expand(self, root: PBegin) -> DoOutputsTuple:
        return (
            root
            | "Patterns" >> beam.Create([self.patterns], reshuffle=False)
            | "FindFiles" >> beam.FlatMap(_planned_spans, self.framing).with_output_types(FileSpan)
            | "SpreadParts" >> beam.Reshuffle()
            | "ReadBlocks" >> rejecting(_counted_blocks, Message, self.framing)
        )
