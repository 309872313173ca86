"""``motet completion``, in a real shell where there is one."""

import shutil
import subprocess
import sys

import pytest

from motet.cli import main
from motet.cli.command import COMMANDS, OWN_FLAGS
from motet.cli.completion import _subcommands

CASES = {
    "motet tr": ["train"],
    "motet train treasure_hunt --worlds-per": ["--worlds-per-actor"],
    "motet train --engine ser": ["serial"],
    "motet eval runs/mine --limits.dec": ["--limits.decision-s"],
    "motet tournament matrix --roun": ["--rounds"],
    "motet resume runs/mine --che": ["--checkpoint"],
    "motet train --nonsense": [],
}

ASK = """
source "$1"
read -ra COMP_WORDS <<< "$2"
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMP_LINE=$2; COMP_POINT=${#2}; COMPREPLY=()
complete -p motet >&2
_tyro_motet
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("shell") / "motet.bash"
    done = subprocess.run([sys.executable, "-m", "motet", "completion", "bash"], capture_output=True, check=True)
    path.write_bytes(done.stdout)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("line", CASES)
def test_bash_completes_commands_flags_and_choices(script, line):
    done = subprocess.run(["bash", "-c", ASK, "bash", str(script), line], capture_output=True, text=True, check=True)
    assert done.stdout.split() == CASES[line]
    assert "-o default" in done.stderr, "files, where there is nothing else"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_that_knows_the_flags(shell, capsys):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "motet" in out and "worlds-per-actor" in out and "decision-s" in out


def test_every_command_is_completed():
    assert set(_subcommands()) == set(COMMANDS)
    assert all(isinstance(_subcommands()[name], type) for name in OWN_FLAGS)
