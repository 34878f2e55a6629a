"""`timebeam layout check|heat`: what a declaration of tables means, and how writes would spread over them."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from timebeam.pipelines.options.parameters import UsageError, text_of, usage_errors
from timebeam.pipelines.output.chart import need_plots, plain
from timebeam.schema.formats import Message
from timebeam.schema.stores.declared.declaration import Declaration, TableLayout
from timebeam.schema.stores.declared.language.explain_layout import Heat, explain, figures, heat
from timebeam.schema.stores.declared.language.load_declaration import DeclarationError, load
from timebeam.schema.stores.declared.parts.time_part import to_ms
from timebeam.schema.stores.declared.records import RecordBatch, read_avro, read_csv, read_json
from timebeam.schema.stores.declared.write_records import layout_rows


@dataclasses.dataclass(frozen=True, slots=True)
class DeclarationOptions:
    """A declaration, and the sample that is drawn; `layout` is one of those declared."""

    action: str
    file: str
    input: str | None
    layout: str | None
    output: str
    summary: str


def run(options: DeclarationOptions) -> int:
    """Explains a declaration, or draws a sample's writes; exit code 1 if the declaration is wrong."""
    try:
        declaration = load(text_of(options.file, "declaration of tables"), options.file)
    except DeclarationError as error:
        print(error, file=sys.stderr)
        return 1
    if options.action == "heat":
        return _heat(declaration, options)
    try:
        print(
            json.dumps(figures(declaration)) if options.summary == "json" else explain(declaration).rstrip()
        )
    except ValueError as error:  # an example that does not fit
        print(f"{options.file}: {error}", file=sys.stderr)
        return 1
    return 0


def _heat(declaration: Declaration, options: DeclarationOptions) -> int:
    """Draws the heat of each layout, and says it in words."""
    if not options.input:
        raise UsageError("heat needs a sample: give --input FILE")
    output = pathlib.Path(options.output)
    if output.suffix.lower() != ".png" or not output.parent.is_dir():
        raise UsageError(f"--output {options.output!r} must be a .png file in a folder that exists")
    need_plots("matplotlib")
    with usage_errors():
        layouts = [declaration.layout(options.layout)] if options.layout else list(declaration.layouts)
        batch, unreadable = _read(pathlib.Path(options.input))
    heats = []
    as_json, verdicts = options.summary == "json", []
    for layout in layouts:
        try:
            heated, rejected = _layout_heat(layout, batch)
        except ValueError as error:
            raise UsageError(f"{options.input}: {error}") from None
        verdict = heated.verdict() if heated else "no record of the sample makes a row"
        verdicts.append(
            {"table": layout.table, "layout": layout.name, "verdict": verdict, "rejected": rejected}
        )
        if not as_json:
            note = f"; {rejected:,} records rejected" if rejected else ""
            print(f"{layout.table} ({layout.name}): {verdict}{note}")
        if heated is not None:
            heats.append((layout, heated))
    if heats:
        output.write_bytes(_picture(heats))
    if as_json:
        print(json.dumps({"tables": verdicts, "unreadable": unreadable, "written": bool(heats)}))
        return 0 if heats else 1
    if unreadable:
        print(f"{unreadable:,} records of the sample could not be read")
    if heats:
        print(f"wrote {options.output}")
    return 0 if heats else 1


def _read(path: pathlib.Path) -> tuple[RecordBatch, int]:
    """The records of a sample, and how many could not be read."""
    message = Message(path.read_bytes(), int(path.stat().st_mtime * 1000), str(path))
    readers = {".csv": read_csv, ".avro": read_avro}
    batch, rejected = readers.get(path.suffix.lower(), read_json)(message)
    return batch, len(rejected)


def _layout_heat(layout: TableLayout, batch: RecordBatch) -> tuple[Heat | None, int]:
    """The heat of one layout and how many records it rejects; writes are taken to come at event time."""
    if layout.when:
        batch = batch.take(np.flatnonzero(batch.present(layout.when)))
    rows, rejections = layout_rows(layout, batch)
    if not rows:
        return None, len(rejections.by_record)
    times_ms = batch.arrivals_ms
    if layout.event is not None:
        times_ms = to_ms(batch.integers(layout.event[0])[0], layout.event[1])
    accepted = np.ones(len(batch), np.bool_)
    accepted[list(rejections.by_record)] = False
    return heat([row.key for row in rows], times_ms[accepted]), len(rejections.by_record)


def _picture(heats: Sequence[tuple[TableLayout, Heat]]) -> bytes:
    """A PNG: for each layout minutes from left to right, key ranges from top to bottom."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 1 + 4.2 * len(heats)), dpi=110, layout="constrained")
    for axes, (layout, heated) in zip(figure.subplots(len(heats), squeeze=False)[:, 0], heats, strict=True):
        ranges, minutes = heated.counts.shape
        start = datetime.datetime.fromtimestamp(heated.first_minute * 60, datetime.UTC)
        image = axes.imshow(
            heated.counts,
            aspect="auto",
            cmap="inferno",
            interpolation="nearest",
            extent=(0, minutes, ranges, 0),
        )
        step = max(1, ranges // 8)
        labels = [plain(_short(heated.starts[i])) for i in range(0, ranges, step)]
        axes.set_yticks(np.arange(0, ranges, step) + 0.5, labels, fontsize=8, family="monospace")
        axes.set_xlabel(f"minutes from {start:%Y-%m-%d %H:%M} UTC", color="#555555")
        axes.set_ylabel("key ranges, by first key", color="#555555")
        axes.set_title(f"{layout.table} ({layout.name})", loc="left", fontsize=13, fontweight="bold", pad=12)
        verdict = f"busiest range: {heated.share:.0%} of a minute's writes"
        axes.set_title(verdict, loc="right", fontsize=9, color="#b00020" if heated.is_hot else "#555555")
        figure.colorbar(image, ax=axes, label="writes per minute")
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def _short(key: bytes) -> str:
    text = key.decode("ascii", "replace")
    text = text if text.isprintable() and "\ufffd" not in text else key.hex()
    return text if len(text) <= 32 else text[:31] + "…"
