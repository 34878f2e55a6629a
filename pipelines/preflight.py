"""`--preflight`: what a job needs, looked at before it runs, with the command that mends what is missing.

Nothing is created, written or deleted. What cannot be asked is said to be unchecked, which is no failure.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence

from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    WorkerOptions,
)

from pipelines.parameters import Parameter, boolean
from pipelines.preflight_pubsub import subscription_checks, topic_checks
from pipelines.run import is_dataflow
from schema.layouts import Layout, Packing, TableSpec
from transforms.bigtable.preflight import BigtableChecks, Check, Status
from transforms.bigtable.target import Target
from transforms.dead_letters import TOPIC
from transforms.files import match

PREFLIGHT = Parameter(
    "preflight",
    "look whether all that the job needs is there, say how to mend what is missing, and do nothing",
    "Run",
    boolean,
    False,
    local="it starts no job",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """What a job needs.

    Attributes:
      layout: None for declared tables.
      packing: None if nothing is appended.
      tables: with those that no layout has, as rollups.
      create_command: what creates the tables.
      creates_metrics: whether metrics without UID get one; True where no metric is new.
      inputs: patterns of files.
      subscription, topic: what is read; None for files.
    """

    target: Target
    layout: Layout | None
    packing: Packing | None
    tables: Sequence[TableSpec]
    create_command: str
    dead_letters: str
    creates_metrics: bool = True
    inputs: Sequence[str] = ()
    subscription: str | None = None
    topic: str | None = None


def preflight(needs: Needs, flags: Sequence[str]) -> int:
    """Prints a line for each check; exit code 1 if something is missing.

    Raises:
      BigtableError: Bigtable does not answer, or there are no credentials.
    """
    found: list[Status] = []
    said: set[str] = set()
    for check in checks(needs, flags):
        found.append(check.status)
        print(f"{check.status.value:9}  {check.what}")
        if check.mend and check.mend not in said:
            print(f"{'':9}  -> {check.mend}")
            said.add(check.mend)
    counted = {status: found.count(status) for status in Status}
    print(", ".join(f"{number} {status.value}" for status, number in counted.items() if number))
    return 1 if counted[Status.MISSING] else 0


def checks(needs: Needs, flags: Sequence[str]) -> Iterator[Check]:
    """All checks of a job.

    Raises:
      BigtableError: Bigtable does not answer, or there are no credentials.
    """
    bigtable = BigtableChecks(needs.target)
    standing = list(bigtable.tables(needs.tables, needs.create_command))
    yield from standing
    uids = needs.layout.uids if needs.layout else None
    yield bigtable.profile(transactions=uids is not None or needs.packing is Packing.APPEND)
    if not any(check.status is Status.MISSING for check in standing):
        yield from bigtable.permissions(needs.tables)
        if uids is not None:
            yield from bigtable.uids(uids, creates_metrics=needs.creates_metrics)
    if needs.subscription:
        yield from subscription_checks(needs.subscription)
    if needs.topic:
        yield from topic_checks(needs.topic)
    for pattern in needs.inputs:
        yield _input(pattern)
    yield from _dead_letters(needs.dead_letters)
    if is_dataflow(flags):
        yield from _dataflow(needs, flags)


def _input(pattern: str) -> Check:
    """Whether there are files to be read."""
    try:
        files = match([pattern])
    except OSError as error:
        return Check(Status.MISSING, f"input: {error}")
    return Check(Status.OK, f"input {pattern}: {len(files):,} file{'s' if len(files) > 1 else ''}")


def _dead_letters(place: str) -> Iterator[Check]:
    """Whether dead letters can be written."""
    if TOPIC.fullmatch(place):
        yield from topic_checks(place)
        return
    if "://" in place:
        yield Check(Status.UNCHECKED, f"dead letters {place}-*: written when the first record is refused")
        return
    folder = os.path.dirname(os.path.abspath(place))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if os.path.isdir(folder) and os.access(folder, os.W_OK):
        yield Check(Status.OK, f"dead letters {place}-*")
    else:
        yield Check(
            Status.MISSING, f"dead letters {place}-*: no folder that we may write to", "--dead_letters"
        )


def _dataflow(needs: Needs, flags: Sequence[str]) -> Iterator[Check]:
    """Whether Dataflow is told what it must know, and its workers can reach what they need."""
    options = PipelineOptions([*flags])
    cloud, workers, setup = (
        options.view_as(one) for one in (GoogleCloudOptions, WorkerOptions, SetupOptions)
    )
    if not cloud.region:
        yield Check(Status.MISSING, "Dataflow: no region", "--region europe-west1")
    if not str(cloud.temp_location or "").startswith("gs://"):
        yield Check(Status.MISSING, "Dataflow: no bucket for its files", "--temp_location gs://BUCKET/tmp")
    if not (setup.setup_file or setup.extra_packages or workers.sdk_container_image):
        yield Check(
            Status.MISSING,
            "Dataflow: workers without timebeam",
            "--sdk_container_image IMAGE",
        )
    local = [place for place in (*needs.inputs, needs.dead_letters) if "://" not in place]
    for place in local:
        if not TOPIC.fullmatch(place):
            yield Check(
                Status.MISSING,
                f"Dataflow: workers cannot reach {place}",
                f"gs://BUCKET/{os.path.basename(place)}",
            )
    yield Check(Status.UNCHECKED, "Dataflow: quotas, network, and what its service account may do")
