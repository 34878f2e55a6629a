"""Results as tables, CSV and JSON, and files of charts written whole."""

import csv
import io
import math
import re

import pytest

from tests.support.plain.results import NAN, SPAN_MS, result
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.reading_options import OUTPUTS
from timebeam.pipelines.output import write_results as rendering
from timebeam.pipelines.output.chart import label


def render(results, output, title, csv_guard=False):
    return rendering.render(results, output, title, SPAN_MS, csv_guard)


def test_a_label_is_metric_tags_and_what_was_aggregated_over():
    assert label(result([1])) == "sys.load{host=a}"
    assert label(result([1], tags={"a": "1", "b": "2"}, over=["c", "d"])) == "sys.load{a=1,b=2} over c,d"


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


def test_csv_has_a_line_per_point_and_a_column_per_tag():
    results = [
        result([1, 2**62 + 1], tags={"dc": "x", "host": "a b"}),
        result([0.5, NAN], tags={"core": "0"}),
    ]
    assert render(results, "csv", "") == (
        "metric,core,dc,host,timestamp_ms,value\n"
        "sys.load,,x,a b,1356998400000,1\n"
        "sys.load,,x,a b,1356998401000,4611686018427387905\n"
        "sys.load,0,,,1356998400000,0.5\n"
        "sys.load,0,,,1356998401000,NaN\n"
    )


def test_a_tag_named_as_another_column_of_csv_is_told_apart():
    text = render([result([1], tags={"metric": "m", "value": "v"})], "csv", "")
    assert text.splitlines()[0] == "metric,tag:metric,tag:value,timestamp_ms,value"


@pytest.mark.parametrize("start", "=+-@")
def test_a_spreadsheet_takes_no_guarded_text_for_a_formula(start):
    formula = start + "1+1"
    of_formulas = [result([-1], metric=formula, tags={formula: formula})]
    with_guard = list(csv.reader(io.StringIO(render(of_formulas, "csv", "", csv_guard=True), newline="")))
    guarded = "'" + formula
    assert with_guard == [
        ["metric", guarded, "timestamp_ms", "value"],
        [guarded, guarded, "1356998400000", "-1"],
    ]
    without = list(csv.reader(io.StringIO(render(of_formulas, "csv", ""), newline="")))
    assert without[1][:2] == [formula, formula]


def test_a_name_in_csv_stays_in_its_line():
    text = render([result([1], metric="m\r\n", tags={"host": "\t=1"})], "csv", "")
    assert text.splitlines()[1] == r"m\u000d\u000a,\u0009=1,1356998400000,1"


def test_names_in_a_table_move_no_cursor_and_break_no_line():
    assert label(result([1], metric="m\n", tags={"host": "\x1b[2J"}, over=["\x9b"])) == (
        "m\\u000a{host=\\u001b[2J} over \\u009b"
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
        ("csv", "metric,timestamp_ms,value\n"),
    ],
)
def test_no_results_as_text(output, expected):
    assert render([], output, "") == expected


@pytest.mark.parametrize("output", ["", "xml", "chart.svg", ".png", "png"])
def test_an_unknown_output_is_rejected_with_the_known_ones(output):
    with pytest.raises(ValueError, match=re.escape(OUTPUTS)):
        render([], output, "")


def test_a_file_in_a_missing_folder_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        render([], str(tmp_path / "missing" / "chart.png"), "")


CHARTS = {
    "none": [],
    "one": [result([1.5, NAN, 2.5, NAN, NAN, 3])],
    "one point": [result([7])],
    "only NaN": [result([NAN, NAN])],
    "infinite": [result([1.0, math.inf, 2.0])],
    "strange names": [result([1, 2], tags={"k": "$a$ \x1b"}), result([3, 4], metric="$m$ _{x")],
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

    def reject(source, target):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", reject)
    with pytest.raises(OSError, match="disk full"):
        render(CHARTS["one"], str(path), "")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("name", "library"), [("a.png", "matplotlib"), ("a.html", "plotly")])
def test_a_missing_library_is_one_line_that_names_the_extra(name, library, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as error:
        rendering.check_output(str(tmp_path / name))
    assert str(error.value) == (f"charts need {library}, which is not installed: pip install -e '.[plots]'")
    rendering.check_output("table")
