"""What Beam's monitoring is given of the tables, as by Beam's own connectors: calls by status, and lineage.

`beam:metric:io:api_request_count:v1` counts the requests of each method and table by status, once they are
answered, and each row that MutateRows rejects. Lineage names the tables that are read and written.
"""

from __future__ import annotations

import functools

from apache_beam.internal.metrics.metric import ServiceCallMetric
from apache_beam.io.gcp.resource_identifiers import BigtableTable
from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.metric import Lineage

from timebeam.transforms.bigtable.target import Target


@functools.lru_cache(maxsize=256)
def _calls(project: str, instance: str, table: str, method: str) -> ServiceCallMetric:
    labels = {
        monitoring_infos.SERVICE_LABEL: "BigTable",
        monitoring_infos.METHOD_LABEL: f"google.bigtable.v2.{method}",
        monitoring_infos.RESOURCE_LABEL: BigtableTable(project, instance, table),
        monitoring_infos.BIGTABLE_PROJECT_ID_LABEL: project,
        monitoring_infos.INSTANCE_ID_LABEL: instance,
        monitoring_infos.TABLE_ID_LABEL: table,
    }
    return ServiceCallMetric(monitoring_infos.API_REQUEST_COUNT_URN, labels)


def count_call(target: Target, table: str, method: str, error: Exception | None = None) -> None:
    """Counts a call of a method of the data API, in any thread.

    Args:
      error: with which it ended after all retries; None for success.
    """
    code = getattr(error, "grpc_status_code", None)
    number = 0 if error is None else 2 if code is None else code.value[0]
    status = ServiceCallMetric.bigtable_error_code_to_grpc_status_string(number)
    _calls(target.project, target.instance, table, method).call(status)


def add_source(target: Target, table: str) -> None:
    """Adds a table to what the pipeline reads; in the thread of the bundle."""
    Lineage.sources().add("bigtable", target.project, target.instance, table)


def add_sink(target: Target, table: str) -> None:
    """Adds a table to what the pipeline writes; in the thread of the bundle."""
    Lineage.sinks().add("bigtable", target.project, target.instance, table)
