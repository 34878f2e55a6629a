"""What a server has done, in the text format of Prometheus."""

from __future__ import annotations

import collections

from timebeam.pipelines.serve.endpoints import ENDPOINTS, GRAFANA

_OTHER = "other"


class Metrics:
    """Counters of one process; only its event loop changes them."""

    def __init__(self) -> None:
        self._requests: collections.Counter[tuple[str, int]] = collections.Counter()
        self._seconds: collections.Counter[str] = collections.Counter()
        self._sizes: collections.Counter[str] = collections.Counter()

    def count(self, path: str, status: int, seconds: float, size: int) -> None:
        """Counts an answer of so many bytes."""
        endpoint = path.rstrip("/").removeprefix(GRAFANA)
        endpoint = endpoint if endpoint in ENDPOINTS else _OTHER
        self._requests[endpoint, status] += 1
        self._seconds[endpoint] += seconds  # type: ignore[assignment]
        self._sizes[endpoint] += size

    def text(self, running: int, queued: int) -> str:
        """All metrics.

        Args:
          running, queued: requests now.
        """
        lines = ["# TYPE timebeam_requests_total counter"]
        lines += [
            f'timebeam_requests_total{{endpoint="{endpoint}",status="{status}"}} {number}'
            for (endpoint, status), number in sorted(self._requests.items())
        ]
        for name, values in (("seconds", self._seconds), ("bytes", self._sizes)):
            lines.append(f"# TYPE timebeam_response_{name}_total counter")
            lines += [
                f'timebeam_response_{name}_total{{endpoint="{endpoint}"}} {value:g}'
                for endpoint, value in sorted(values.items())
            ]
        for name, value in (("running", running), ("waiting", queued)):
            lines += [f"# TYPE timebeam_queries_{name} gauge", f"timebeam_queries_{name} {value}"]
        return "\n".join(lines) + "\n"
