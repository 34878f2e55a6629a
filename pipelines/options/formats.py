"""What the options of message formats mean."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from timebeam.pipelines.options.catalogue import format_parameters
from timebeam.pipelines.options.parameters import DECLARED, UsageError, usage_errors
from timebeam.schema.formats import AUTO, FORMATS, Framing, MessageFormat, message_format
from timebeam.schema.stores import STORES, make_store

RECORDS = "records"
"""The format of records of named fields, which no `MessageFormat` reads."""


def format_of(options: argparse.Namespace) -> tuple[dict[str, Any], Framing]:
    """The options of the message format by name, and how its files are cut.

    Raises:
      UsageError: an option makes no sense.
    """
    format_options = {parameter.name: getattr(options, parameter.name) for parameter in format_parameters()}
    store = make_store(options.layout, {}) if options.layout in STORES else None
    format_options["resources"] = store is not None and store.writing.takes_resources
    if options.format == RECORDS:
        raise UsageError(f"--format {RECORDS} needs declared tables: --layout {DECLARED} --tables FILE")
    if options.format == AUTO:
        if not options.formats:
            raise UsageError(f"--format {AUTO} needs --formats: the formats to choose from")
        check_formats(formats_of(options), format_options)
        return format_options, Framing.NONE
    formats = check_formats((options.format, *formats_of(options)), format_options)
    return format_options, formats[0].framing


def check_formats(names: Iterable[str], format_options: Mapping[str, Any]) -> list[MessageFormat]:
    """The message formats of some names; raises UsageError if an option of one makes no sense."""
    with usage_errors():
        return [message_format(name, format_options) for name in names]


def formats_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The formats that messages may name in their attributes.

    Raises:
      UsageError: there is none of such a name.
    """
    chosen = [name for text in options.formats for name in text.split(",")]
    for name in chosen:
        if name not in FORMATS:
            raise UsageError(f"--formats: unknown format {name!r}: choose from {', '.join(FORMATS)}")
    return tuple(chosen)
