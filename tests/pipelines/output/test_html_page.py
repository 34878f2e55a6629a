"""A chart as an HTML file: what is in it, as a browser would read it."""

import base64
import html.parser
import json
import math
import re

import numpy as np
import pytest

from tests.support.plain.results import BASE, NAN, SPAN_MS, result
from timebeam.pipelines.output.chart import Chart
from timebeam.pipelines.output.html_page import chart_page
from timebeam.schema.core.annotations import Annotation

HOSTILE = '</script><b onclick="x">&amp;<!-- %{x}'

CHARTS = {
    "none": [],
    "one": [result([1.5, NAN, 2.5, NAN, NAN, 3])],
    "one point": [result([7])],
    "infinite": [result([1.0, math.inf, 2.0])],
    "strange names": [result([1, 2], tags={"k": HOSTILE}), result([3, 4], metric="$m$ _{x")],
    "many": [result(range(i, i + 100), tags={"host": f"web{i:02}"}) for i in range(30)],
}


class Page(html.parser.HTMLParser):
    """The text and the attributes of each element, in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.open = [tag, dict(attributes), ""]
        self.elements.append(self.open)

    def handle_data(self, text):
        if self.open:
            self.open[2] += text

    def handle_endtag(self, tag):
        self.open = []

    def texts(self, tag):
        return [text for name, _, text in self.elements if name == tag]


def page(results, notes=(), title="title", zone="UTC"):
    return Page(chart_page(Chart.of(results, notes, title, SPAN_MS, zone)))


def figure(parsed):
    """(lines, layout, configuration): the arguments of the call that draws."""
    (script,) = [text for text in parsed.texts("script") if "Plotly.newPlot(" in text and len(text) < 10**6]
    rest = script.split("Plotly.newPlot(", 1)[1].split(",", 1)[1].lstrip()
    arguments = []
    for _ in range(3):
        argument, end = json.JSONDecoder().raw_decode(rest)
        arguments.append(argument)
        rest = rest[end:].lstrip(", \n")
    return arguments


def numbers(array):
    if isinstance(array, list):
        return np.array(array, float)
    return np.frombuffer(base64.b64decode(array["bdata"]), array["dtype"]).astype(float)


@pytest.mark.parametrize("results", CHARTS.values(), ids=CHARTS)
def test_a_page_holds_every_point_of_every_series(results):
    lines, _, _ = figure(page(results))
    assert len(lines) == len(results)
    for line, one in zip(lines, results, strict=True):
        assert numbers(line["x"]).tolist() == one.times_ms.tolist()
        assert np.array_equal(numbers(line["y"]), one.values.astype(float), equal_nan=True)
    assert len({line["line"]["color"] for line in lines}) == len(lines)


@pytest.mark.parametrize("results", CHARTS.values(), ids=CHARTS)
def test_a_page_loads_nothing_and_sends_nothing(results):
    parsed = page(results)
    assert not any({"src", "href"} & attributes.keys() for _, attributes, _ in parsed.elements)
    (policy,) = [attributes["content"] for _, attributes, _ in parsed.elements if "http-equiv" in attributes]
    assert re.findall(r"([a-z]+)-src ([^;]*)", policy) == [
        ("default", "'none'"),
        ("style", "'unsafe-inline'"),
        ("script", "'unsafe-inline'"),
        ("img", "data: blob:"),
    ]
    _, _, configuration = figure(parsed)
    assert configuration["showSendToCloud"] is False
    assert len(max(parsed.texts("script"), key=len)) > 1_000_000  # Plotly itself


def test_the_axis_of_a_page_is_the_range_that_was_asked_for():
    _, layout, _ = figure(page(CHARTS["one"]))
    assert layout["xaxis"]["range"] == list(SPAN_MS)
    assert layout["xaxis"]["type"] == "date"
    assert layout["xaxis"]["title"]["text"] == "time (UTC)"
    assert layout["yaxis"]["title"]["text"] == "sys.load"


def test_the_axis_of_a_page_is_in_a_time_zone():
    """Plotly's axes know none: what they get is the local time as if it were UTC."""
    ahead_ms = (5 * 60 + 45) * 60_000
    note = Annotation("", SPAN_MS[0], 0, "deploy")
    lines, layout, _ = figure(page(CHARTS["one"], [note], zone="Asia/Kathmandu"))
    assert layout["xaxis"]["range"] == [time + ahead_ms for time in SPAN_MS]
    assert layout["xaxis"]["title"]["text"] == "time (Asia/Kathmandu)"
    utc, _, _ = figure(page(CHARTS["one"]))
    assert {*(numbers(lines[0]["x"]) - numbers(utc[0]["x"]))} == {ahead_ms}
    assert layout["shapes"][0]["x0"] == layout["annotations"][0]["x"] == SPAN_MS[0] + ahead_ms


def test_names_and_title_are_text_and_no_markup():
    parsed = page([result([1], tags={"k": HOSTILE}), result([1], tags={"k": "b"})], title=HOSTILE)
    assert parsed.texts("title") == parsed.texts("h1") == [HOSTILE]
    assert not parsed.texts("b")
    lines, _, _ = figure(parsed)
    assert "<" not in lines[0]["name"]
    # Plotly reads these three entities.
    name = lines[0]["name"].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert name == f"k={HOSTILE}"


def test_annotations_are_marked_and_listed():
    start_s = BASE // 1000
    notes = [
        Annotation("01", start_s + 60, start_s + 120, "slow <b>"),
        Annotation("", start_s + 90, 0, "power"),
    ]
    parsed = page(CHARTS["one"], notes)
    assert parsed.texts("span") == ["slow <b>", "power"]
    assert parsed.texts("b") == ["2013-01-01T00:01:00Z to 2013-01-01T00:02:00Z", "2013-01-01T00:01:30Z"]
    _, layout, _ = figure(parsed)
    assert [(shape["type"], shape["x0"], shape["x1"]) for shape in layout["shapes"]] == [
        ("rect", BASE + 60_000, BASE + 120_000),
        ("line", BASE + 60_000, BASE + 60_000),
        ("line", BASE + 90_000, BASE + 90_000),
    ]
    assert [(number["text"], number["x"], number["hovertext"]) for number in layout["annotations"]] == [
        ("1", BASE + 60_000, "2013-01-01T00:01:00Z to 2013-01-01T00:02:00Z: slow &lt;b&gt;"),
        ("2", BASE + 90_000, "2013-01-01T00:01:30Z: power"),
    ]


def test_points_that_no_line_reaches_are_dots():
    values = [1.0] * 100 + [NAN, 2.0, NAN]
    (line,), _, _ = figure(page([result(values)]))
    assert line["mode"] == "lines+markers"
    assert np.flatnonzero(numbers(line["marker"]["size"])).tolist() == [101]
    (line,), _, _ = figure(page([result([1.0] * 100)]))
    assert line["mode"] == "lines"


def test_a_page_follows_the_light_or_dark_mode_of_the_browser():
    text = chart_page(Chart.of(CHARTS["one"], [], "t", SPAN_MS))
    assert text.count("prefers-color-scheme: dark") == 2  # of the page, and of the chart
    assert "color-scheme: light dark" in text


def test_a_page_without_points_says_so():
    assert page([]).texts("p") == ["no points in this range"]
    assert not page(CHARTS["one"]).texts("p")


def test_the_same_chart_is_the_same_file():
    first, second = (chart_page(Chart.of(CHARTS["many"], [], "t", SPAN_MS)) for _ in range(2))
    assert first == second
