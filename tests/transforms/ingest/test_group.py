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

from timebeam.pipelines.jobs.runners import LOCAL_RUNNER
from timebeam.schema.core.writing import Encoded, RowFragment
from timebeam.transforms.ingest import group

PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


def pipeline(*flags: str) -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions([f"--runner={LOCAL_RUNNER}", *flags]))


@pytest.mark.parametrize(
    ("flags", "one_bundle", "chosen"),
    [
        ((), False, beam.GroupByKey),
        ((), True, group.GroupInBundle),
        (PROCESSES, False, group.GroupOnDisk),
        (PROCESSES, True, group.GroupInBundle),
    ],
)
def test_fragments_are_grouped_on_disk_only_for_processes_of_this_machine(
    flags: list[str], one_bundle: bool, chosen: type[beam.PTransform]
):
    assert type(group.grouping(pipeline(*flags), one_bundle=one_bundle)) is chosen


@pytest.mark.parametrize("spool_bytes", [1, 500])
def test_fragments_grouped_on_disk_are_those_of_the_rows(spool_bytes: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group, "_SPOOL_BYTES", spool_bytes)
    monkeypatch.setattr(group, "_PARTITIONS", 7)
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

    def check(groups: list[tuple[tuple[str, bytes], list[bytes]]]) -> None:
        assert len(groups) == len(expected)
        assert {key: sorted(fragments) for key, fragments in groups} == {
            key: sorted(fragments) for key, fragments in expected.items()
        }

    with pipeline() as root:
        folder = Path(root.local_tempdir)
        encoded = root | beam.Create([Encoded(fragments, (), 0) for fragments in batches])
        assert_that(encoded | group.GroupOnDisk(), check)
    assert not os.path.exists(folder)
