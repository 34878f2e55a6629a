"""Blocks of whole records out of files: the bounded source of every pipeline.

A plain file of lines is cut every `BLOCK_BYTES`; a block holds the lines that begin in its part, so
that each line is in exactly one block, however the parts are spread over workers. A compressed file, or
one of another framing, is one part, read from its start. Any file system that Beam knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import DoOutputsTuple, PBegin

from timebeam.schema.messages import Framing, Message
from timebeam.schema.points import Reason, Rejected, Stage
from timebeam.transforms import metrics
from timebeam.transforms.dead_letters.rejected import RejectedOutput, refuse, refusing
from timebeam.transforms.input import line_cutter as cutters
from timebeam.transforms.input.avro_cutter import AvroCutter
from timebeam.transforms.input.decompress import DamagedError, TruncatedError, content, is_compressed
from timebeam.transforms.input.json_cutter import DOCUMENT_BYTES, JsonCutter, starts_document
from timebeam.transforms.input.line_cutter import Cutter, LineCutter

BLOCK_BYTES = 4 << 20
"""Size of a block; its last line may reach beyond."""

_PARTS_A_READ = 16  # blocks read one after the other by one worker, so that a file is opened seldom


class FilePart(NamedTuple):
    """The records of a file that begin from byte `start` on and before byte `end`.

    Attributes:
      end: -1 for a file that is read from its start to its end.
      modified_ms: modification time of the file, which becomes the arrival of its points.
    """

    path: str
    start: int
    end: int
    modified_ms: int

    def message(self) -> Message:
        """An empty message with the source and arrival of all its blocks."""
        return Message(b"", self.modified_ms, self.path, self.start)


def match(patterns: Iterable[str]) -> list[FileMetadata]:
    """The files that match any of the patterns, each once, by path; folders are passed over.

    Raises:
      OSError: a pattern matches no file, or a folder, or a file that cannot be read or is dated before 1970;
        or it is of a file system that is not at hand.
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
    """Raises OSError if a file of this machine cannot be read.

    Its modification time must be after 1970 began, since it becomes the timestamp of cells.
    """
    if FileSystems.get_scheme(file.path) is not None:
        return
    if not os.access(file.path, os.R_OK):
        raise PermissionError(f"{file.path} cannot be read: permission denied")
    if file.last_updated_in_seconds * 1000 < 1:
        raise OSError(
            f"{file.path}: its modification time is not after 1970-01-01, and would be the timestamp of its "
            "cells: set it with `touch`"
        )


def parts(file: FileMetadata, framing: Framing = Framing.LINES) -> Iterator[FilePart]:
    """The parts of a file that may be read apart from each other.

    Raises:
      ValueError: the file system does not tell the modification time, without which a later
        correction could not win.
    """
    modified_ms = int(file.last_updated_in_seconds * 1000)
    if modified_ms <= 0:
        raise ValueError(f"{file.path}: its file system gives no modification time")
    if is_compressed(file.path) or framing is Framing.AVRO or _may_be_document(file, framing):
        yield FilePart(file.path, 0, -1, modified_ms)
        return
    step = BLOCK_BYTES * _PARTS_A_READ
    for start in range(0, file.size_in_bytes, step):
        yield FilePart(file.path, start, min(start + step, file.size_in_bytes), modified_ms)


def _may_be_document(file: FileMetadata, framing: Framing) -> bool:
    """Whether a plain file must be read from its start, since it may be a JSON document over several lines.

    Only files that are longer than a document may be are looked into.
    """
    if framing is not Framing.JSON or file.size_in_bytes <= DOCUMENT_BYTES:
        return framing is Framing.JSON
    with FileSystems.open(file.path, compression_type=CompressionTypes.UNCOMPRESSED) as opened:
        return starts_document(opened.read(cutters.LINE_BYTES + 1))


def blocks(part: FilePart, framing: Framing = Framing.LINES) -> Iterator[Message | Rejected]:
    """The blocks of a part, and a refusal for the bytes that cannot be read."""
    with FileSystems.open(part.path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        if part.end >= 0:
            yield from _plain_blocks(part, file)
            return
        yield from _whole_file_blocks(part, file, _cutter(part, framing))


def _cutter(part: FilePart, framing: Framing) -> Cutter:
    """What cuts a whole file."""
    if framing is Framing.AVRO:
        return AvroCutter(part.path, part.modified_ms, BLOCK_BYTES)
    if framing is Framing.JSON:
        return JsonCutter(part.message(), BLOCK_BYTES)
    return LineCutter(part.message())


def _plain_blocks(part: FilePart, file: BinaryIO) -> Iterator[Message | Rejected]:
    """Blocks of the lines that begin in a part of a plain file."""
    cutter = LineCutter(part.message())
    if part.start > 0:
        file.seek(part.start - 1)
        skipped = _skip_line(file, part.end - part.start + 1)
        if skipped is None:
            return
        cutter.offset = part.start - 1 + skipped
        file.seek(cutter.offset)
    while cutter.offset + len(cutter.rest) < part.end:
        want = min(BLOCK_BYTES, part.end - cutter.offset - len(cutter.rest))
        data = file.read(want)
        if not data:
            break
        yield from cutter.add(data)
    # The last line of the part may end behind it.
    while cutter.open_line:
        data = file.read(1 << 16)
        end = data.find(b"\n") + 1
        yield from cutter.add(data[:end] if end else data)
        if end or not data:
            break
    yield from cutter.finish()


def _whole_file_blocks(part: FilePart, file: BinaryIO, cutter: Cutter) -> Iterator[Message | Rejected]:
    """Blocks of a file read from its start; what is readable of a truncated or damaged one is kept."""
    try:
        for data in content(part.path, file, BLOCK_BYTES):
            yield from cutter.add(data)
        yield from cutter.finish()
    except (TruncatedError, DamagedError) as error:
        yield from cutter.settle()
        truncated = isinstance(error, TruncatedError)
        reason = Reason.TRUNCATED_FILE if truncated else Reason.CORRUPT_FILE
        message = f"{error}: what ends before byte {cutter.offset} is stored; the rest is not"
        yield Rejected(
            cutter.rest[: cutters.LINE_BYTES], reason, message, Stage.READ, part.path, cutter.offset
        )


def _skip_line(file: BinaryIO, limit: int) -> int | None:
    """Bytes up to and with the next newline; None if there is none within `limit` bytes."""
    seen = 0
    while seen < limit:
        data = file.read(min(1 << 16, limit - seen))
        if not data:
            return None
        at = data.find(b"\n")
        if at >= 0:
            return seen + at + 1
        seen += len(data)
    return None


class _PartsFn(beam.DoFn):
    def __init__(self, framing: Framing) -> None:
        self._framing = framing

    def process(self, patterns: list[str]) -> Iterable[FilePart]:
        """The parts of all files of some patterns."""
        for file in match(patterns):
            yield from parts(file, self._framing)


class _BlocksFn(beam.DoFn):
    def __init__(self, framing: Framing) -> None:
        self._framing = framing

    def process(self, part: FilePart) -> Iterable[Message | RejectedOutput]:
        """The blocks of a part."""
        for block in blocks(part, self._framing):
            if isinstance(block, Rejected):
                metrics.count("points_read")
                yield refuse(block)
            else:
                metrics.count("messages_read")
                metrics.count("bytes_read", len(block.text))
                yield block


class ReadBlocks(beam.PTransform):  # type: ignore[type-arg]
    """Reads files as `Message` blocks of whole records; outputs `main` and `REJECTED`.

    Args:
      patterns: file patterns; a file that several of them match is read once.
      framing: that of the format of the files; not `Framing.NONE`.
    """

    def __init__(self, patterns: Iterable[str], framing: Framing = Framing.LINES) -> None:
        super().__init__()
        self.patterns = list(patterns)
        self.framing = framing

    def expand(self, root: PBegin) -> DoOutputsTuple:
        """See the class."""
        return (
            root
            | "Patterns" >> beam.Create([self.patterns], reshuffle=False)
            | "FindFiles" >> beam.ParDo(_PartsFn(self.framing)).with_output_types(FilePart)
            | "SpreadParts" >> beam.Reshuffle()
            | "ReadBlocks" >> refusing(_BlocksFn(self.framing), Message)
        )
