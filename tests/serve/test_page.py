"""The script of the page at /, in Node.js: what it gives to Plotly. tests/clients has it in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from timebeam.pipelines.serve.route_requests import PAGE

DRIVER = """
const vm = require("vm");
const given = {};
const element = { addEventListener() {}, value: "" };
const document = { getElementById: () => element, querySelectorAll: () => [], body: {} };
const page = {
  document, matchMedia: () => element, addEventListener() {}, location: { search: "" }, URLSearchParams,
  getComputedStyle: () => ({ color: "black" }), fetch: () => new Promise(() => {}),
  Plotly: { react(id, traces, layout) { Object.assign(given, { traces, layout }); } },
};
page.given = given;
vm.createContext(page);
vm.runInContext(require("fs").readFileSync(0, "utf8"), page);
vm.runInContext(process.argv[1], page);
// Plotly writes what it finds out about an axis into its object.
given.isShared = given.layout && given.layout.xaxis === given.layout.yaxis;
console.log(JSON.stringify(given));
"""


def given_to_plotly(script: str) -> dict[str, Any]:
    """The traces and the layout of the chart after a script of the page, and what that puts into `given`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no program node: apt-get install nodejs")
    page = PAGE["/page.js"][1]().decode()
    ran = subprocess.run([node, "-e", DRIVER, script], input=page, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    given: dict[str, Any] = json.loads(ran.stdout)
    return given


def test_the_chart_has_times_on_one_axis_and_numbers_on_the_other() -> None:
    result = {"metric": "cpu.percent", "tags": {}, "dps": [[1709287200000, 97.5], [1709287260000, 100]]}
    given = given_to_plotly(f"shown = [{json.dumps(result)}]; drawChart()")
    assert not given["isShared"]
    assert (given["layout"]["xaxis"]["type"], given["layout"]["yaxis"]["type"]) == ("date", "linear")
    (trace,) = given["traces"]
    assert trace["x"] == ["2024-03-01T10:00:00.000Z", "2024-03-01T10:01:00.000Z"]
    assert trace["y"] == [97.5, 100]


def test_days_and_times_are_those_of_the_time_zone() -> None:
    """The hour that clocks repeat is told apart by its offset, and days are asked for by a body."""
    hour_ms, autumn_ms = 3_600_000, 1729987200000  # 2024-10-27T00:00:00Z, an hour before clocks go back
    dps = [[autumn_ms, 1], [autumn_ms + hour_ms, 2], [autumn_ms + 2 * hour_ms + 250, 3]]
    result = {"metric": "m", "tags": {}, "dps": dps}
    asked = {
        "metric": "m",
        "tags": "host=*",
        "aggregator": "sum",
        "downsample": "1dc-sum",
        "rate": "",
        "start": "2024/10/27",
        "end": "now",
        "timezone": "Europe/Berlin",
    }
    given = given_to_plotly(
        f"shown = [{json.dumps(result)}]; shownZone = 'Europe/Berlin'; drawChart();"
        f"const asked = {json.dumps(asked)};"
        "given.texts = shown[0].dps.map(([time]) => timeText(time, shownZone));"
        "given.request = requestOf(asked); given.command = commandOf(asked);"
        "given.utc = requestOf({...asked, timezone: 'UTC'});"
    )
    assert given["traces"][0]["x"] == [
        *("2024-10-27T02:00:00.000", "2024-10-27T02:00:00.000", "2024-10-27T03:00:00.250"),
    ]
    assert given["texts"] == [
        "2024-10-27T02:00:00.000+02:00",
        "2024-10-27T02:00:00.000+01:00",
        "2024-10-27T03:00:00.250+01:00",
    ]
    path, body = given["request"]
    assert (path, body["timezone"], body["start"]) == ("api/query?arrays=true", "Europe/Berlin", "2024/10/27")
    assert "--timezone Europe/Berlin --downsample 1dc-sum" in given["command"]
    assert len(given["utc"]) == 1
