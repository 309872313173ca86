"""The code and the commands in the guides work as they are written."""

import functools
import importlib
import os
import re
import shlex
import subprocess
import sys

import pytest
import tyro
from support import ROOT

from motet.cli import command, flags
from motet.training import Settings

PAGES = [
    "coming_from",
    "dqn",
    "empowerment",
    "export",
    "faq",
    "glossary",
    "iqn",
    "memory",
    "object_gridworld",
    "own_algorithm",
    "own_network",
    "platforms",
    "reproducibility",
    "steps",
]
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
GROUPS = 3
RUNNER = """
import os, runpy, sys
for path in sys.argv[1:]:
    os.chdir(os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")
"""


def blocks(page):
    """Language, text and first line of the blocks of a page that are meant to work."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return [
        (found[2], found[3], text.count("\n", 0, found.start(3)) + 1) for found in BLOCK.finditer(text) if not found[1]
    ]


def scripts(page):
    return [(line, code) for language, code, line in blocks(page) if language == "python"]


def commands():
    lines = [line for page in PAGES for language, text, _ in blocks(page) if not language for line in text.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("motet ")]


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_python_block_runs(group, tmp_path):
    """One process for several pages, so that torch is loaded once; each block is a script with names of its own."""
    paths = []
    for page in [page for page in PAGES if scripts(page)][group::GROUPS]:
        (tmp_path / page).mkdir()
        for line, code in scripts(page):
            paths.append(tmp_path / page / f"{page}_line_{line}.py")
            paths[-1].write_text(code)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *paths], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_command_is_accepted(arguments):
    name, *rest = arguments
    if name == "train":
        assert isinstance(flags.parse(rest).settings, Settings)
        return
    assert name not in command.OWN_FLAGS, "say here how this command reads its arguments"
    module, function = command.COMMANDS[name][0].split(":")
    known = getattr(importlib.import_module(module), function)

    @functools.wraps(known)
    def taken(**given):
        return given

    assert isinstance(tyro.cli(taken, args=rest, config=(tyro.conf.FlagCreatePairsOff,)), dict)


def test_blocks_of_other_libraries_are_left_out():
    text = (ROOT / "docs" / "coming_from.md").read_text()
    assert len(scripts("coming_from")) == text.count("```python\n") - text.count("<!-- not run: ")
    assert not any("import stable_baselines3" in code or "from ray" in code for _, code in scripts("coming_from"))


@pytest.mark.parametrize("page", PAGES)
def test_tables_have_at_most_four_columns(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert max([line.count("|") - 1 for line in text.splitlines() if line.startswith("|---")], default=0) <= 4
