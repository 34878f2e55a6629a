"""`timebeam.parse`: the points in bytes of a message format."""

from __future__ import annotations

import time

from timebeam.schema.formats import FormatName, format_class, message_format
from timebeam.schema.formats.base import Message, Parsed


def parse(
    format: FormatName | str,  # noqa: A002
    data: bytes,
    *,
    arrival_ms: int | None = None,
    **options: str | int | bool,
) -> Parsed:
    """The points and the rejected records in bytes of a message format; never raises for what they hold.

    >>> parsed = parse("opentsdb-text", b"put load 1356998400 0.5 host=a\\nput load 1356998400 high host=a")
    >>> [(str(series), time_ms, value) for series, time_ms, value in parsed.points.points()]
    [('load{host=a}', 1356998400000, 0.5)]
    >>> [rejected.reason.value for rejected in parsed.rejected]
    ['bad-number']

    Args:
      format: a name of `--format`, also of an installed package.
      data: whole records: a file, decompressed, or a message.
      arrival_ms: when it arrived, in ms since 1970; of a point that is stored twice, the last arrival wins.
        None for now.
      options: of the format, by name.

    Raises:
      ValueError: there is no such format, or the value of an option is wrong.
      TypeError: `data` is not bytes.
    """
    if not isinstance(data, bytes | bytearray):
        raise TypeError(f"parse takes bytes, not {type(data).__name__}")
    arrival_ms = int(time.time() * 1000) if arrival_ms is None else arrival_ms
    names = [option.name for option in format_class(format).options_class.declared()]
    for name in options:
        if name not in names:
            raise ValueError(f"format {format} has no option {name}: it has {', '.join(names) or 'none'}")
    return message_format(format, options).parse(Message(data, arrival_ms))
