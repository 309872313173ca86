"""Workflow files call make targets that exist, with the versions of Python that the package is for."""

import re
import tomllib

import pytest
from support import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_step_is_a_make_target(path):
    called = re.findall(r"^\s*- run: (.+)$", path.read_text(), re.M)
    assert called
    for command in called:
        words = command.removeprefix("sudo ").split()
        assert words[0] == "make" and set(words[1:]) <= TARGETS, command


def test_the_oldest_python_is_the_one_that_is_required():
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    tested = re.search(r"python: \[(.+)\]", (ROOT / ".github" / "workflows" / "test.yml").read_text())[1]
    assert required == f">={re.findall(r'[0-9.]+', tested)[0]}"
