"""Choices that the commands name as words are those that OpenTSDB's modules know."""

from __future__ import annotations

from timebeam.pipelines.commands.ingest import WRITING
from timebeam.pipelines.commands.query import SUGGEST_COMMAND
from timebeam.pipelines.options.store_settings import ESCAPE
from timebeam.schema.stores.opentsdb.meta_documents import MetaMode
from timebeam.schema.stores.opentsdb.uids.uid_table import KINDS, Names


def test_modes_of_metadata() -> None:
    (meta,) = (parameter for parameter in WRITING if parameter.name == "meta")
    assert (meta.choices, meta.default) == (tuple(MetaMode), MetaMode.OFF)


def test_kinds_of_names() -> None:
    kind, _ = SUGGEST_COMMAND.arguments
    assert kind.choices == KINDS


def test_escaped_names() -> None:
    assert ESCAPE == Names.ESCAPE
