"""The page at / in Debian's Chromium: typed with the keyboard, charted, linked, and dark."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import ingest, timebeam
from tests.support.servers.browser import Browser, running_browser
from tests.support.servers.programs import program
from tests.support.servers.running_server import running
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.web_application import ServerLimits
from timebeam.transforms.query.budget import Budget

pytestmark = pytest.mark.clients

LIMITS = ServerLimits(Budget(100_000, 1_000_000, 1_000_000, 1 << 26, 60.0), 4, 64, 1 << 20)
BASE_S = 1_709_287_200  # 2024-03-01T10:00:00Z
HOSTS = {"a": 1, "b": 5}
LINES = "[...document.querySelectorAll('#chart .scatterlayer .trace')].length"


@pytest.fixture(scope="module")
def store(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("page")
    store = Store.create(bigtable, "page_")
    path = folder / "points.json"
    path.write_text(
        "".join(
            json.dumps(
                {"metric": metric, "timestamp": BASE_S + second, "value": base, "tags": {"host": host}}
            )
            + "\n"
            for metric in ("sys.load", "sys.memory")
            for host, base in (HOSTS if metric == "sys.load" else {"a": 1}).items()
            for second in range(0, 3600, 60)
        )
    )
    ingest(folder, *store.flags, "--auto-create-metrics", "--format=opentsdb-json", "--input", path)
    return store


@pytest.fixture(scope="module")
def server(store: Store) -> Iterator[httpx.Client]:
    with running(Api(store.target, store.layout), LIMITS) as client:
        yield client


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(program("chromium", "chromium"), tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


def view(server: httpx.Client, **fields: str) -> str:
    end = {"start": str(BASE_S), "end": str(BASE_S + 3599)}
    return f"{server.base_url}/?" + "&".join(f"{key}={quote(text)}" for key, text in (end | fields).items())


def message(browser: Browser) -> str:
    text: str = browser.until(
        "(text => text !== '…' && text)(document.getElementById('message').textContent)"
    )
    return text


def test_a_link_shows_a_chart_a_table_a_command_and_a_request(
    server: httpx.Client, store: Store, browser: Browser
) -> None:
    fields = {"metric": "sys.load", "tags": "host=*", "aggregator": "max", "downsample": "10m-sum"}
    browser.open(view(server, **fields))
    assert message(browser) == "2 series, 12 points"
    assert browser.until(LINES) == 2
    rows = browser.evaluate(
        "[...document.querySelectorAll('#rows tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert rows[0] == ["sys.load{host=a}", "2024-03-01T10:00:00.000Z", "10"]
    request = browser.evaluate("document.getElementById('request').textContent")
    (result, *_) = httpx.get(request).json()
    assert result["dps"][0] == [BASE_S * 1000, 10.0]
    command = shlex.split(browser.evaluate("document.getElementById('command').textContent"))
    ran = timebeam(*command[1:], *store.flags, "--output=json-ms")
    assert json.loads(ran.out)[0]["dps"][str(BASE_S * 1000)] == 10.0
    link = browser.evaluate("document.getElementById('link').href")
    browser.open(link)
    assert message(browser).startswith("2 series")
    assert browser.errors == []
    assert {url.split("/")[2] for url in browser.urls if url.startswith("http")} == {
        server.base_url.netloc.decode()
    }


def test_a_person_sees_times_along_x_and_numbers_along_y(server: httpx.Client, browser: Browser) -> None:
    browser.open(view(server, metric="sys.load", tags="host=*", aggregator="max"))
    assert message(browser) == "2 series, 120 points"
    axes = "document.getElementById('chart')._fullLayout"
    assert browser.until(f"{axes} && [{axes}.xaxis.type, {axes}.yaxis.type]") == ["date", "linear"]
    texts = "[...document.querySelectorAll('#chart .%s text')].map(text => text.textContent)"
    values = browser.until(f"(texts => texts.length && texts)({texts % 'ytick'})")
    assert {float(value) for value in values} >= set(HOSTS.values())
    times = browser.evaluate(texts % "xtick")
    assert "10:00" in times[0]
    assert "2024" in times[0]


def test_the_keyboard_is_enough(server: httpx.Client, browser: Browser) -> None:
    browser.open(view(server))
    browser.until("document.querySelectorAll('#aggregator option').length > 30")
    assert browser.evaluate("document.activeElement.id") == "metric"
    browser.type("sys.m")
    assert (
        browser.until("[...document.querySelectorAll('#metrics option')].map(o => o.value).join()")
        == "sys.memory"
    )
    browser.type("emory")
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.id") == "tags"
    assert browser.until("document.getElementById('tag-list').textContent") == "host=*host=a"
    browser.type("host=a")
    browser.press("Enter", 13)
    assert message(browser) == "1 series, 60 points"
    assert "metric=sys.memory" in browser.evaluate("location.search")
    assert browser.errors == []


def test_names_may_have_the_characters_of_queries(
    bigtable: tuple[str, str], tmp_path: Path, browser: Browser
) -> None:
    store = AnyStore.create(bigtable, "page-odd-", "kairosdb-milliseconds")
    metric, tags = "cpu:user{a,b}", {"disk,0": "c:=d{e}", "host": "a"}
    path = tmp_path / "points.json"
    point = {"name": metric, "timestamp": BASE_S * 1000, "value": 7, "tags": tags}
    path.write_text(json.dumps(point) + "\n")
    assert ingest(tmp_path, *store.flags, "--format=kairosdb-json", "--input", path).letters == []
    with running(Api(store.target, store.layout), LIMITS) as server:
        browser.open(view(server))
        browser.until("document.querySelectorAll('#aggregator option').length > 30")
        browser.evaluate(f"document.getElementById('metric').value = {json.dumps(metric)}")
        browser.evaluate("document.getElementById('tags').focus()")
        names = "[...document.querySelectorAll('#tag-list option')].map(o => o.value)"
        tag = browser.until(f"{names}.length === 4 && {names}[1]")
        assert tag == "disk\\,0=c:=d{e}"
        browser.open(view(server, metric=metric, tags=f"{tag}, host=*", aggregator="max", rate=""))
        assert message(browser) == "1 series, 1 points"
        rows = browser.evaluate("document.getElementById('rows').textContent")
        assert rows == f"{metric}{{disk,0=c:=d{{e}},host=a}}2024-03-01T10:00:00.000Z7"
        program, flag, body, url = shlex.split(
            browser.evaluate("document.getElementById('request').textContent")
        )
        assert (program, flag) == ("curl", "--data")
        assert httpx.post(url, content=body).json()[0]["dps"] == [[BASE_S * 1000, 7]]
        command = shlex.split(browser.evaluate("document.getElementById('command').textContent"))
        ran = timebeam(*command[1:], *store.flags, "--output=json-ms")
        assert json.loads(ran.out)[0]["dps"] == {str(BASE_S * 1000): 7}
        assert browser.errors == []


def test_an_error_is_shown(server: httpx.Client, browser: Browser) -> None:
    browser.open(view(server, metric="<b>lod</b>"))
    assert "No such name for 'metrics': '<b>lod</b>'" in message(browser)


@pytest.mark.parametrize(
    ("metric", "start"),
    [
        ("it's $(id) `id` \"", "timebeam query 'it'\\''s $(id) `id` \"' --start"),
        ("=ls", "timebeam query '=ls' --start"),
        ("-rf", "timebeam query --start"),
        ("a\x1b[201~", "timebeam query 'a\ufffd[201~' --start"),
    ],
)
def test_the_command_is_safe_in_a_shell(
    server: httpx.Client, browser: Browser, metric: str, start: str
) -> None:
    browser.open(view(server, metric=metric))
    message(browser)
    command = browser.evaluate("document.getElementById('command').textContent")
    assert command.startswith(start)
    assert metric.replace("\x1b", "\ufffd") in shlex.split(command)
    assert command.endswith(" -- -rf") is (metric == "-rf")


def test_names_are_no_markup_in_the_chart(server: httpx.Client, browser: Browser) -> None:
    browser.open(view(server))
    name = "<b>a</b> &lt;i&gt; <a href='javascript:x'>b</a>"
    result = json.dumps({"metric": name, "tags": {}, "dps": [[0, 1], [1000, 2]]})
    browser.until("document.querySelectorAll('#aggregator option').length > 30")
    browser.evaluate(f"(shown = [{result}], drawChart())")
    assert browser.until("document.querySelector('#chart .legendtext')?.textContent") == name


def test_the_chart_is_dark_in_dark_mode(server: httpx.Client, browser: Browser) -> None:
    colors = {}
    for scheme in ("light", "dark"):
        feature = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.call("Emulation.setEmulatedMedia", features=feature)
        if not colors:
            browser.open(view(server, metric="sys.memory"))
            browser.until(LINES)
        color = "getComputedStyle(document.querySelector('#chart .xtick text')).fill"
        colors[scheme] = browser.until(f"({color} !== '{colors.get('light')}') && {color}")
    assert colors == {"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}
