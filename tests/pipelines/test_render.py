"""Results as tables, CSV, JSON and charts."""

import html.parser
import json
import math
import re

import numpy as np
import pytest

from pipelines.render import OUTPUTS, label, render, short_labels
from schema.query.answer import Result

BASE = 1356998400000  # 2013-01-01
NAN = math.nan
FORBIDDEN = '</script><b onclick="x">&'


def result(values, step_ms=1000, tags=None, over=(), metric="sys.load", nan_is_null=False):
    values = np.array(values)
    times = BASE + step_ms * np.arange(len(values), dtype=np.int64)
    tags = {"host": "a"} if tags is None else tags
    return Result(metric, tags, list(over), times, values, nan_is_null)


def test_a_label_is_metric_tags_and_what_was_aggregated_over():
    assert label(result([1])) == "sys.load{host=a}"
    assert label(result([1], tags={"a": "1", "b": "2"}, over=["c", "d"])) == "sys.load{a=1,b=2} over c,d"


def test_short_labels_leave_out_the_metric_if_tags_tell_the_results_apart():
    a, b = result([1]), result([1], tags={"dc": "x", "host": "b"})
    assert short_labels([a, b]) == ["host=a", "dc=x, host=b"]
    assert short_labels([a, result([1], metric="other")]) == ["sys.load{host=a}", "other{host=a}"]
    assert short_labels([result([1], tags={}, over=["host"])]) == ["sys.load{} over host"]


def test_a_table_aligns_decimal_points():
    assert render([result([1.5, -20.25, NAN, 3])], "table", "") == (
        "sys.load{host=a}  4 points\n"
        "  2013-01-01T00:00:00Z    1.5\n"
        "  2013-01-01T00:00:01Z  -20.25\n"
        "  2013-01-01T00:00:02Z  NaN\n"
        "  2013-01-01T00:00:03Z    3.0\n"
    )


def test_a_table_of_two_results_with_integers_milliseconds_and_null():
    results = [result([1, 200], step_ms=5), result([NAN], tags={}, nan_is_null=True)]
    assert render(results, "table", "") == (
        "sys.load{host=a}  2 points\n"
        "  2013-01-01T00:00:00.000Z    1\n"
        "  2013-01-01T00:00:00.005Z  200\n"
        "\n"
        "sys.load{}  1 point\n"
        "  2013-01-01T00:00:00Z  null\n"
    )


def test_a_long_table_is_shortened_and_says_so():
    text = render([result(range(100))], "table", "")
    assert text.splitlines()[-2:] == [
        "  2013-01-01T00:00:19Z  19",
        "  ... 80 more points (table-all shows them)",
    ]
    whole = render([result(range(100))], "table-all", "")
    assert whole.splitlines()[-1] == "  2013-01-01T00:01:39Z  99"
    assert len(whole.splitlines()) == 101


def test_a_table_is_not_shortened_by_a_single_line():
    assert "more" not in render([result(range(21))], "table", "")
    assert "2 more points" in render([result(range(22))], "table", "")


def test_a_table_of_many_series_is_shortened_and_says_so():
    results = [result([1], tags={"host": str(i)}) for i in range(25)]
    text = render(results, "table", "")
    assert text.count("sys.load{") == 20
    assert text.endswith("\n... 5 more series (table-all shows them)\n")
    assert render(results, "table-all", "").count("sys.load{") == 25


def test_csv_has_a_line_per_point():
    results = [result([1, 2**62 + 1], tags={"dc": "x", "host": "a"}), result([0.5, NAN], tags={})]
    assert render(results, "csv", "") == (
        "metric,tags,timestamp_ms,value\n"
        "sys.load,dc=x host=a,1356998400000,1\n"
        "sys.load,dc=x host=a,1356998401000,4611686018427387905\n"
        "sys.load,,1356998400000,0.5\n"
        "sys.load,,1356998401000,NaN\n"
    )


def test_json_is_in_seconds_and_json_ms_in_milliseconds():
    results = [result([1])]
    head = '[{"metric":"sys.load","tags":{"host":"a"},"aggregateTags":[],"dps":'
    assert render(results, "json", "") == head + '{"1356998400":1}}]\n'
    assert render(results, "json-ms", "") == head + '{"1356998400000":1}}]\n'


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("table", "no points\n"),
        ("json", "[]\n"),
        ("csv", "metric,tags,timestamp_ms,value\n"),
    ],
)
def test_no_results_as_text(output, expected):
    assert render([], output, "") == expected


@pytest.mark.parametrize("output", ["", "xml", "chart.svg", ".png", "png"])
def test_an_unknown_output_is_refused_with_the_known_ones(output):
    with pytest.raises(ValueError, match=re.escape(OUTPUTS)):
        render([], output, "")


def test_a_file_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        render([], str(tmp_path / "missing" / "chart.png"), "")


CHARTS = {
    "none": [],
    "one": [result([1.5, NAN, 2.5, NAN, NAN, 3])],
    "one point": [result([7])],
    "only NaN": [result([NAN, NAN])],
    "infinite": [result([1.0, math.inf, 2.0])],
    "strange names": [result([1, 2], tags={"k": FORBIDDEN}), result([3, 4], metric="$m$ _{x")],
    "many": [result(range(i, i + 5), tags={"host": f"web{i:02}"}) for i in range(30)],
}


@pytest.mark.parametrize("results", CHARTS.values(), ids=CHARTS)
def test_a_png_is_written_whole_and_leaves_nothing_beside_it(results, tmp_path):
    path = tmp_path / "chart.PNG"
    path.write_bytes(b"old")
    assert render(results, str(path), "a $title$") is None
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "chart.html"
    path.write_text("old")

    def refuse(source, target):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        render(CHARTS["one"], str(path), "")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


class Page(html.parser.HTMLParser):
    """The text and the attributes of each element, by tag."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.open = [tag, dict(attributes), ""]
        self.found.append(self.open)

    def handle_data(self, text):
        if self.open:
            self.open[2] += text

    def handle_endtag(self, tag):
        self.open = []

    def texts(self, tag):
        return [text for name, _, text in self.found if name == tag]


def page(results, tmp_path, title="title"):
    path = tmp_path / "chart.html"
    assert render(results, str(path), title) is None
    return path.read_text(encoding="utf-8")


def chart_data(parsed):
    (text,) = [text for tag, attributes, text in parsed.found if attributes.get("id") == "data"]
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize("results", CHARTS.values(), ids=CHARTS)
def test_a_page_holds_every_series_and_loads_nothing(results, tmp_path):
    text = page(results, tmp_path)
    parsed = Page(text)
    data = chart_data(parsed)
    assert [one["times"] for one in data] == [result.times_ms.tolist() for result in results]
    assert parsed.texts("span") == short_labels(results)
    assert "://" not in text
    assert not any({"src", "href"} & attributes.keys() for _, attributes, _ in parsed.found)
    assert "default-src 'none'" in text


def test_a_page_escapes_names_and_title(tmp_path):
    text = page([result([1], tags={"k": FORBIDDEN})], tmp_path, title=FORBIDDEN)
    assert FORBIDDEN not in text
    parsed = Page(text)
    assert parsed.texts("title") == parsed.texts("h1") == [FORBIDDEN]
    assert parsed.texts("span") == [f"k={FORBIDDEN}"]
    assert not parsed.texts("b")


def test_a_page_has_null_for_what_cannot_be_drawn(tmp_path):
    (data,) = chart_data(Page(page([result([1.5, NAN, math.inf])], tmp_path)))
    assert data["values"] == [1.5, None, None]


@pytest.mark.parametrize(
    ("values", "figures"),
    [
        ([1000, 3000], ["2", "1,000", "2,000", "3,000", "3,000"]),
        ([0.25, NAN, 1.0, 0.5], ["3", "0.25", "0.583333", "1", "0.5"]),
        ([1234567.891, 1e-9], ["2", "1e-09", "617,284", "1,234,568", "1e-09"]),
        ([NAN], ["0"]),
    ],
)
def test_a_page_s_table_sums_up_each_series(values, figures, tmp_path):
    assert Page(page([result(values)], tmp_path)).texts("td") == figures


def test_a_page_without_points_says_so(tmp_path):
    parsed = Page(page([], tmp_path))
    assert parsed.texts("p") == ["no points in this range"]
    assert {attributes["id"] for _, attributes, _ in parsed.found if "hidden" in attributes} == {
        "plot",
        "series",
    }
