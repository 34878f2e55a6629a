"""`timebeam layout check|heat` as a user runs it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from timebeam.pipelines.commands import find_command
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.tables import layout

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/tables"


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        options, _ = find_command("layout").parse([str(argument) for argument in arguments])
        code = layout.run(options)
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_check_explains_every_example(path: Path) -> None:
    code, out, err = run("check", path)
    assert (code, err) == (0, "")
    assert out.startswith("Table ")
    assert "  key     " in out
    assert "cbt createtable " in out


def test_check_tells_what_is_wrong_with_file_and_path(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text((EXAMPLES / "market.toml").read_text().replace(", width = 13", ""))
    code, out, err = run("check", path)
    assert (code, out) == (1, "")
    keys = [f"{path}: layout.quote.key[2]", f"{path}: layout.trade.key[2]"]
    assert [line.split(": a decimal time")[0] for line in err.splitlines()] == keys


def test_check_of_an_example_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text((EXAMPLES / "market.toml").read_text().replace('SYMBOL = "ZXZZT"', 'SYMBOL = "ZXZZTT"'))
    code, out, err = run("check", path)
    assert (code, out) == (1, "")
    assert "longer than 5 bytes" in err


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the declaration of tables"):
        run("check", tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        run("check", tmp_path / "bytes.toml")


def test_heat_draws_and_says_it(tmp_path: Path) -> None:
    verdicts = {}
    for name in ("battery_naive", "battery_promoted", "battery_salted", "battery_random"):
        picture = tmp_path / f"{name}.png"
        code, out, err = run(
            "heat", EXAMPLES / f"{name}.toml", "--input", EXAMPLES / "battery.jsonl", "--output", picture
        )
        assert (code, err) == (0, "")
        assert picture.read_bytes().startswith(b"\x89PNG")
        verdicts[name] = "a hot spot" in out
        assert out.endswith(f"wrote {picture}\n")
    assert verdicts == {
        "battery_naive": True,
        "battery_promoted": False,
        "battery_salted": False,
        "battery_random": False,
    }


def test_heat_of_one_of_several_layouts_and_of_csv(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    code, out, _ = run(
        "heat", EXAMPLES / "market.toml", "--input", EXAMPLES / "market.jsonl", "--output", picture
    )
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()[:2]] == ["QUOTE (quote)", "TRADE (trade)"]
    code, out, _ = run(
        "heat",
        EXAMPLES / "market.toml",
        "--layout",
        "trade",
        "--input",
        EXAMPLES / "market.jsonl",
        "--output",
        picture,
    )
    assert out.splitlines()[0].startswith("TRADE (trade): 2 writes")
    code, out, _ = run(
        "heat", EXAMPLES / "sensor.toml", "--input", EXAMPLES / "sensor.csv", "--output", picture
    )
    assert (code, out.startswith("SENSOR (sensor): 5 writes")) == (0, True)


def test_heat_of_records_that_are_rejected(tmp_path: Path) -> None:
    sample = tmp_path / "bad.jsonl"
    sample.write_text('{"USER":"a#","TS":1,"PERCENTAGE":1}\nno json\n')
    code, out, _ = run(
        "heat", EXAMPLES / "battery_promoted.toml", "--input", sample, "--output", tmp_path / "p.png"
    )
    assert code == 1
    assert out == (
        "BATTERY (battery): no record of the sample makes a row; 1 records rejected\n"
        "1 records of the sample could not be read\n"
    )
    assert not (tmp_path / "p.png").exists()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "give --input"),
        (["--input", EXAMPLES / "market.jsonl", "--output", "x.svg"], "must be a .png file"),
        (["--input", EXAMPLES / "market.jsonl", "--output", "nowhere/x.png"], "in a folder that exists"),
        (["--input", EXAMPLES / "market.jsonl", "--layout", "none"], "declares no layout 'none'"),
    ],
)
def test_wrong_usage(flags: list[str | Path], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        run("heat", EXAMPLES / "market.toml", *flags)
