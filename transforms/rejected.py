"""The side output on which every step hands on what it refuses."""

from __future__ import annotations

from typing import Final, Literal

from apache_beam.pvalue import TaggedOutput

from schema.points import Rejected

REJECTED: Final = "rejected"

RejectedOutput = TaggedOutput[Literal["rejected"], Rejected]


def refuse(rejected: Rejected) -> RejectedOutput:
    """A refusal as an element of the output `REJECTED`."""
    return TaggedOutput(REJECTED, rejected)
