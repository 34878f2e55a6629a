"""What a chart shows, and its PNG."""

import pytest

from tests.support.plain.results import NAN, SPAN_MS, result
from timebeam.pipelines.output.chart import Chart, colours, short_labels
from timebeam.schema.core.annotations import Annotation


def test_labels_are_what_tells_the_series_apart():
    a, b = result([1]), result([1], tags={"dc": "x", "host": "b"})
    assert short_labels([a, b]) == ["host=a", "dc=x, host=b"]
    assert short_labels([a, result([1], metric="other")]) == ["sys.load", "other"]
    assert short_labels([a, result([1], metric="other", tags={"host": "b"})]) == [
        "sys.load{host=a}",
        "other{host=b}",
    ]
    assert short_labels([a, result([1], tags={"dc": "x", "host": "a"})]) == [
        "sys.load{host=a}",
        "sys.load{dc=x,host=a}",
    ]
    assert short_labels([result([1], tags={}, over=["host"])]) == ["sys.load{} over host"]


def test_tags_that_all_series_share_are_in_the_title_once():
    results = [result([1], tags={"core": "0", "dc": "lga", "host": host}, over=["cpu"]) for host in "ab"]
    chart = Chart.of(results, [], "sum sys.load", SPAN_MS)
    assert chart.title == "sum sys.load {core=0,dc=lga} over cpu"
    assert chart.labels == ["host=a", "host=b"]
    assert chart.value_label == "sys.load"


def test_a_chart_of_several_metrics_and_one_of_none():
    both = [result([1]), result([1], metric="sys.cpu")]
    assert Chart.of(both, [], "t", SPAN_MS).value_label == "value"
    empty = Chart.of([result([])], [], "t", SPAN_MS)
    assert (empty.title, empty.results, empty.labels) == ("t", [], [])


@pytest.mark.parametrize("count", [0, 1, 12, 13, 300])
def test_each_series_has_a_colour_of_its_own(count):
    chosen = colours(count)
    assert len(chosen) == len(set(chosen)) == count
    assert chosen == colours(count + 5)[:count]


def drawn(results, notes, monkeypatch, zone="UTC"):
    """The axes of a PNG."""
    from matplotlib.figure import Figure

    from timebeam.pipelines.output.chart import chart_picture

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **named: (figures.append(self), save(self, *args, **named))
    )
    assert chart_picture(Chart.of(results, notes, "title", SPAN_MS, zone)).startswith(b"\x89PNG")
    return figures[0]


@pytest.mark.parametrize("values", [[], [1], [1, NAN, 2]], ids=str)
def test_the_axis_of_a_picture_is_the_range_that_was_asked_for(values, monkeypatch):
    figure = drawn([result(values)], [Annotation("", SPAN_MS[0] - 10_000_000, 0, "before")], monkeypatch)
    day_ms = 24 * 3600 * 1000
    assert figure.axes[0].get_xlim() == pytest.approx([time / day_ms for time in SPAN_MS])
    assert figure.axes[0].get_xlabel() == "time (UTC)"
    assert figure.axes[0].get_ylabel() == ("sys.load" if values else "value")


def test_the_axis_of_a_picture_is_in_a_time_zone(monkeypatch):
    figure = drawn([result([1, 2])], [], monkeypatch, "Asia/Kathmandu")
    axes = figure.axes[0]
    assert axes.get_xlabel() == "time (Asia/Kathmandu)"
    assert axes.xaxis.get_major_locator().tz.key == "Asia/Kathmandu"


def test_every_line_of_a_picture_has_its_colour(monkeypatch):
    figure = drawn([result([i, i], tags={"host": str(i)}) for i in range(30)], [], monkeypatch)
    assert len({line.get_color() for line in figure.axes[0].get_lines()[:30]}) == 30
