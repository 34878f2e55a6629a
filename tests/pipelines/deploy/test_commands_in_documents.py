"""Every command of `timebeam` in the documents and in what schedules it is one that its parser takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.house.parsers import rejection
from timebeam.pipelines.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("templates/**/*.md")])
_FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(timebeam [a-z]+ [^`]*--[^`]*)`")
_VARIABLES = {"$DAY": "2026-11-20", "$FLAGS": "--project=p --instance=i", "$TOPIC": "projects/p/topics/t"}


_LEFT_OUT = ("the following arguments are required", "expected a value")
"""What a command within a sentence may leave out, which a block may not."""


def commands(text: str) -> Iterator[str]:
    """The lines of fenced blocks that begin with `timebeam`, continued ones joined."""
    for block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            stripped = line.strip().removeprefix("$ ")
            if stripped.startswith("timebeam "):
                yield stripped


def mentions(text: str) -> Iterator[str]:
    """Commands with options within sentences."""
    yield from (found.replace("\n", " ") for found in _INLINE.findall(text))


def words(command: str) -> list[str] | None:
    """The words of a command as a shell has them, without comments and what comes behind a pipe or `;`.

    None for one that is only hinted at, with dots for what is left out.
    """
    for name, value in _VARIABLES.items():
        command = command.replace(name, value)
    found: list[str] = []
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    for word in lexer:
        if set(word) <= set("|;&<>"):
            break
        found.append(word)
    return None if "…" in command or "..." in found else found[1:]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_documents(path: Path) -> None:
    wrong = []
    for command in commands(path.read_text("utf-8")):
        found = words(command)
        why = rejection(found) if found else None
        if why:
            wrong.append(f"{command}\n  {why.strip().splitlines()[-1]}")
    for command in mentions(path.read_text("utf-8")):
        found = words(command.partition("[")[0])
        why = rejection(found) if found else None
        if why and not any(text in why for text in _LEFT_OUT):
            wrong.append(f"{command}\n  {why.strip().splitlines()[-1]}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_there_are_commands_in_the_documents() -> None:
    """The test above would be green too if it found none."""
    handbook = [words(one) for one in commands((ROOT / "docs" / "operate" / "runbook.md").read_text("utf-8"))]
    assert len(handbook) >= 15
    assert {found[0] for found in handbook if found} >= {
        "ingest",
        "replay",
        "rollup",
        "copy",
        "tables",
        "check",
    }
    assert all(rejection([name, "--help"]) is None for name in COMMANDS)


@pytest.mark.parametrize(
    "line",
    [
        "timebeam ingest --layout opentsdb --format opentsdb-json --input a --no_such_option",
        "timebeam ingest --layout opentsdbb --format opentsdb-json --input a",
        "timebeam tables remove --layout opentsdb",
        "timebeam tables create --layout opentsdb --runner DirectRunner",
        "timebeam nothing",
        "timebeam plan --layout opentsdb",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    found = words(line)
    assert found is not None
    assert rejection(found)


def test_commands_of_cron_systemd_and_kubernetes() -> None:
    schedule = ROOT / "templates" / "schedule"
    crontab = (schedule / "timebeam.cron").read_text()
    flags = re.findall(r'^FLAGS="(.*)"$', crontab, re.MULTILINE)[0]
    lines = [line.partition("$TIMEBEAM ")[2] for line in crontab.splitlines() if "$TIMEBEAM" in line]
    found = [shlex.split(line.replace("$FLAGS", flags)) for line in lines]
    service = (schedule / "timebeam-rollup.service").read_text()
    found += [
        shlex.split(line)[1:] for line in re.findall(r"^ExecStart(?:Pre)?=(.*)$", service, re.MULTILINE)
    ]
    manifests = yaml.safe_load_all((schedule / "cronjob.yaml").read_text())
    (job,) = (manifest for manifest in manifests if manifest["kind"] == "CronJob")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][0] == "timebeam"
    found.append([*container["command"][1:], *container["args"]])
    assert [one[0] for one in found] == ["rollup", "check", "delete", "rollup", "rollup", "rollup"]
    for one in found:
        assert rejection(one) is None, one
