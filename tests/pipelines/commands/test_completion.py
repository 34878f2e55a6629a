"""`timebeam completion`: scripts that know all commands and options, and start nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.commands import timebeam
from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.commands.setup import SHELLS


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
    options = {f"--{parameter.name}" for parameter in parser.parameters}
    assert completed(script, "timebeam", command, "--") >= options | {"--help"}


def test_bash_completes_choices(script: Path) -> None:
    assert completed(script, "timebeam", "tables", "") >= {"create", "adopt", "retention"}
    assert completed(script, "timebeam", "query", "m", "--layout", "kai") == {"kairosdb"}


@pytest.mark.parametrize("shell", SHELLS)
def test_no_script_starts_python(shell: str) -> None:
    ran = timebeam("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert "python" not in ran.out.lower()
    assert "$(timebeam" not in ran.out
    for command in COMMANDS:
        assert command in ran.out
    assert "auto_create_metrics" in ran.out
