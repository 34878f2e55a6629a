"""Fragments of rows grouped in files, as by a GroupByKey."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that

from timebeam.pipelines.beam_patches.local_runner import LOCAL_RUNNER
from timebeam.schema.core.point_fragments import Encoded, RowFragment
from timebeam.transforms.ingest import encode_group_pack

PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


def pipeline(*flags: str) -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions([f"--runner={LOCAL_RUNNER}", *flags]))


@pytest.mark.parametrize(
    ("flags", "one_bundle", "inner"),
    [
        ((), False, "Fragments"),
        ((), True, "ParDo(_GroupFn)"),
        (PROCESSES, False, "Spool"),
        (PROCESSES, True, "ParDo(_GroupFn)"),
    ],
)
def test_fragments_are_grouped_on_disk_only_for_processes_of_this_machine(
    flags: list[str], one_bundle: bool, inner: str
):
    root = pipeline(*flags)
    root | beam.Create([Encoded([], (), 0)]) | "Group" >> encode_group_pack.GroupPerRow(one_bundle=one_bundle)
    assert f"Group/{inner}" in root.applied_labels


@pytest.mark.parametrize(("flags", "spool_bytes"), [((), 1), (PROCESSES, 1), (PROCESSES, 500)])
def test_grouped_fragments_are_those_of_the_rows(
    flags: list[str], spool_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(encode_group_pack._SpoolFn, "most_weight", spool_bytes)
    monkeypatch.setattr(encode_group_pack, "_PARTITIONS", 7)
    rng = random.Random(spool_bytes)
    batches = [
        [
            RowFragment(
                rng.choice(["t", "other"]), b"%d" % rng.randrange(20), rng.randbytes(rng.randrange(50))
            )
            for _ in range(rng.randrange(30))
        ]
        for _ in range(20)
    ]
    expected: dict[tuple[str, bytes], list[bytes]] = {}
    for table, key, fragment in itertools.chain.from_iterable(batches):
        expected.setdefault((table, key), []).append(fragment)

    def check(encoded: list[Encoded]) -> None:
        rows = [row for each in encoded for row in each.by_row().items()]
        assert len(rows) == len(expected)
        assert {key: sorted(fragments) for key, fragments in rows} == {
            key: sorted(fragments) for key, fragments in expected.items()
        }

    with pipeline(*flags) as root:
        folder = Path(root.local_tempdir)
        encoded = root | beam.Create([Encoded(fragments, (), 0) for fragments in batches])
        assert_that(encoded | encode_group_pack.GroupPerRow(one_bundle=False), check)
    assert not os.path.exists(folder)
