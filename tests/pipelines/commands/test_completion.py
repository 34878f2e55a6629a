"""`timebeam completion`: scripts that know all commands and options, and start nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import timebeam
from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.options.parameters import flag


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "timebeam.bash"
    path.write_text(timebeam("completion", "bash").out)
    return path


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    program = f"""
        source {script}
        function=$(complete -p timebeam | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        PATH=/nowhere  # nothing can be started
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}
        $function
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ran = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert not ran.stderr, ran.stderr
    return {word.strip() for word in ran.stdout.splitlines() if word.strip()}


def test_bash_completes_commands(script: Path) -> None:
    assert completed(script, "timebeam", "") >= set(COMMANDS)
    assert completed(script, "timebeam", "re") == {"replay", "reindex"}


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_completes_every_option(script: Path, command: str) -> None:
    parser = find_command(command).parser()
    options = {flag(parameter.name) for parameter in parser.parameters}
    assert completed(script, "timebeam", command, "--") >= options | {"--help"}


def test_bash_completes_choices(script: Path) -> None:
    assert completed(script, "timebeam", "tables", "") >= {"create", "adopt", "retention"}
    assert completed(script, "timebeam", "query", "m", "--layout", "kai") == {"kairosdb"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_no_script_starts_python(shell: str) -> None:
    ran = timebeam("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert "python" not in ran.out.lower()
    assert "$(timebeam" not in ran.out
    for command in COMMANDS:
        assert command in ran.out
    assert "auto-create-metrics" in ran.out


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_fish_completes(tmp_path: Path) -> None:
    path = tmp_path / "timebeam.fish"
    path.write_text(timebeam("completion", "fish").out)

    def offered(line: str) -> set[str]:
        program = f"source {path}; set -x PATH /nowhere; complete -C'{line}'"
        ran = subprocess.run(
            ["fish", "--no-config", "-c", program], capture_output=True, text=True, check=True
        )
        return {text.partition("\t")[0].strip() for text in ran.stdout.splitlines() if text.strip()}

    assert offered("timebeam re") == {"replay", "reindex"}
    assert offered("timebeam query m --down") == {"--downsample"}
    assert offered("timebeam query m --layout kai") == {"kairosdb"}
    assert offered("timebeam tables ") >= {"create", "adopt", "retention"}


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_takes_the_script(tmp_path: Path) -> None:
    path = tmp_path / "_timebeam"
    path.write_text(timebeam("completion", "zsh").out)
    program = (
        f"autoload -Uz compinit; fpath=({tmp_path} $fpath); compinit -u -d {tmp_path}/dump; "
        "autoload +X _timebeam; print -r -- $_comps[timebeam]"
    )
    ran = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("_timebeam\n", "")
