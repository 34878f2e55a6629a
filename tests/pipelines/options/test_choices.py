"""Choices that the catalogue of options names as words are those that the modules they stand for know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from timebeam.pipelines.commands import find_command
from timebeam.pipelines.local import generate
from timebeam.pipelines.options.catalogue import OPTIONS, format_parameters
from timebeam.pipelines.options.parameters import RECORDS
from timebeam.pipelines.options.store_settings import ESCAPE
from timebeam.pipelines.serve import writes
from timebeam.pipelines.sizing.estimate import NODES
from timebeam.pipelines.sizing.measure import Values
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.formats import AUTO, FORMATS
from timebeam.schema.formats.options import RecordEncoding
from timebeam.schema.stores.opentsdb.meta_documents import MetaMode
from timebeam.schema.stores.opentsdb.options import Names
from timebeam.schema.stores.opentsdb.uids.uid_table import KINDS


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("format", (*FORMATS, RECORDS, AUTO)),
        ("generate.format", tuple(generate.FORMATS)),
        ("packing", tuple(Packing)),
        ("form", (Packing.COMPACTED, Packing.APPEND)),
        ("records_encoding", tuple(RecordEncoding)),
        ("storage", tuple(NODES)),
        ("values", tuple(Values)),
    ],
)
def test_words(key: str, words: tuple[str, ...]) -> None:
    assert OPTIONS[key].choices == words


def test_modes_of_metadata() -> None:
    meta = OPTIONS["meta"]
    assert (meta.choices, meta.default) == (tuple(MetaMode), MetaMode.OFF)


def test_kinds_of_names() -> None:
    kind, _ = find_command("suggest").arguments
    assert kind.choices == KINDS


def test_escaped_names() -> None:
    assert ESCAPE == Names.ESCAPE


def test_formats_that_a_server_takes() -> None:
    taken = {
        each.name for each in format_parameters() if set(writes.FORMATS) & {*(each.shown_for or ("", ()))[1]}
    }
    assert taken == {each.name for each in find_command("serve").parameters if each.group == "Format"}


def test_names_of_beams_options_are_those_of_the_pinned_beam() -> None:
    """In a process of its own: each module of Beam that is imported adds options."""
    command = [sys.executable, "-m", "timebeam.pipelines.deploy.beam_options", "check"]
    assert subprocess.run(command, cwd=Path(__file__).parents[3]).returncode == 0
