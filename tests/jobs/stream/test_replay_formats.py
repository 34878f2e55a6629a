"""Messages of every format that are rejected for an unknown name are stored by a replay that creates it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.budget import long_but_every
from tests.support.commands import code_of, timebeam
from tests.support.inputs.samples import Form, forms
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer
from tests.support.stored import Store
from timebeam.schema.formats import AUTO, FORMATS, Message, message_format
from timebeam.schema.stores.opentsdb.columns import annotation_cells
from timebeam.schema.stores.opentsdb.keys import parse_key

PUBLISHED_MS = 1_767_225_600_000
CREATE = "--auto-create-metrics"
FORMS = {name: form for name, form in forms().items() if form.name in FORMATS}


def run(store: Store, folder: Path, dead: str, source: Sequence[str | Path], *flags: str) -> dict[str, Any]:
    """The summary of an ingest or a replay."""
    place = *store.flags, "--packing=points", "--summary=json", f"--dead-letters={folder / dead}"
    ran = timebeam(*source, *place, *flags)
    assert ran.out, ran.err
    summary = json.loads(ran.out)
    assert ran.code == code_of(summary), ran.err
    return summary


def ingest(store: Store, folder: Path, dead: str, form: Form, *flags: str) -> dict[str, Any]:
    """The summary of an ingest of the samples of a form, each in a message."""
    published = [Published(text, PUBLISHED_MS + n) for n, text in enumerate(form.samples)]
    stream = "ingest", f"--input-subscription={SUBSCRIPTION}", "--flush-seconds=0", "--stop-when-idle=0.3"
    with PubSubServer(published).running() as server:
        summary = run(store, folder, dead, stream, *flags)
        assert server.left == 0
    return summary


def content(store: Store) -> set[tuple[object, ...]]:
    """The cells of the data table, with names in the place of UIDs."""
    names, options = store.names(), store.layout.options
    found: set[tuple[object, ...]] = set()
    for key, *cell in store.cells():
        if annotation_cells.is_global(options, key):
            found.add((key, *cell))
            continue
        base = key[options.salt_width + 3 :][:4]
        found.add((base, *(names[pair] for pair in parse_key(options, key).uids), *cell))
    return found


def known_metric(form: Form) -> str:
    """A metric of the samples if they have several, else another."""
    reader = message_format(form.name, form.options)
    batches = [reader.parse(Message(text, 0)).batch for text in form.samples]
    metrics = sorted({s.metric for batch in batches for s in batch.series if not s.resources})
    return metrics[-1] if len(metrics) > 1 else "other"


def create_metric(store: Store, metric: str) -> None:
    """Assigns a UID that no TSUID of the samples begins with, nor do later ones."""
    store.set_uid("metrics", "id", metric.encode(), b"\0\0\x99")
    store.set_uid("metrics", "name", b"\0\0\x99", metric.encode())
    store.set_counter("metrics", 0x99)


@pytest.mark.parametrize(("name", "choice"), long_but_every(2, FORMS, ["named", AUTO]))
def test_a_replay_leaves_what_an_ingest_had_left(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, name: str, choice: str
) -> None:
    """The format is named by the option or told by the content; of several metrics one is known."""
    form = FORMS[name]
    options = [f"--{key}" if value is True else f"--{key}={value}" for key, value in form.options.items()]
    of_format = (
        [f"--format={AUTO}", f"--formats={form.name}"] if choice == AUTO else [f"--format={form.name}"]
    )
    flags = [*of_format, *options, "--set=names=replace"]
    replayed, direct = (Store.create(bigtable, f"{prefix}{n}") for n in (1, 2))
    for store in (replayed, direct):
        create_metric(store, known_metric(form))
    expected = ingest(direct, tmp_path, "other", form, *flags, CREATE)
    rejected = ingest(replayed, tmp_path, "dead", form, *flags)["rejected"]
    assert rejected["unknown-name"] > 0
    before = content(replayed)
    assert before < content(direct)
    assert len(before) > 0 or known_metric(form) == "other"
    if name == "avro":  # payloads are records, without the schema of their container
        flags.append("--avro-encoding=binary")
    again = run(replayed, tmp_path, "again", ["replay", tmp_path / "dead*"], *flags, CREATE)
    assert set(again["rejected"]) == set(expected["rejected"])
    assert content(replayed) == content(direct)
