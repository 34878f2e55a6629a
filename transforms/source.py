"""The points that a `Selection` wants, out of the tables of any layout: what queries and copies read with."""

from __future__ import annotations

from collections.abc import Iterator

from schema.layouts import DecodedRows, Finding, Layout, Reader, Selection
from transforms.bigtable.reader import read_ahead

BATCH_POINTS = 500_000


def read_decoded(
    layout: Layout, wanted: Selection, reader: Reader, most: int = BATCH_POINTS
) -> Iterator[DecodedRows | Finding]:
    """The rows in batches of about `most` points, decoded together, with the points of the time range only.

    Findings about rows that cannot be read come by themselves, before the rows that are held at that time.
    Of a row that is damaged in part the rest is read.

    Batches come in the order of `Layout.select`. The rows of one may be mixed, but for those that can hold
    the same instant of one series (`Layout.several_rows`): of these the one that is read later comes later.
    So an instant may come twice: of its points the one that arrived last counts, of one arrival the last one.

    Raises:
      UnknownNameError: see `Layout.select`.
    """
    for found in read_ahead(layout.select(wanted, reader), most):
        if isinstance(found, Finding):
            yield found
            continue
        yield layout.decode_rows(found).within(wanted.start_ms, wanted.end_ms + 1)
