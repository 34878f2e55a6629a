"""Docstrings refer to names that exist: ours, or known ones of other programs and of data."""

from __future__ import annotations

from pathlib import Path

from tests.house.figures import documents, modules
from tests.house.references import unresolved

ROOT = Path(__file__).resolve().parents[2]
OF_OTHERS = {
    "NAME_MEAN",
    "ParameterType",
    "SubprocessSdkWorkerHandler",
    "TIMEBEAM_PROJECT",
    "_LOW_HIGH",
    "_pct_P",
    "grpc.experimental.ChannelOptions",
    "runDouble",
    "syncNote",
}
"""Of OpenTSDB, Beam, gRPC and Google's services, and parts of names of metrics."""


def test_references_of_docstrings_lead_somewhere() -> None:
    found = unresolved(modules(ROOT), documents(ROOT))
    assert [each for each in found if each.text not in OF_OTHERS] == []
    assert {each.text for each in found} == OF_OTHERS
