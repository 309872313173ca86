"""The examples run as they are written."""

import os
import re
import subprocess
import sys
import warnings

import nbclient
import nbformat
import pytest
from support import EXAMPLES


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("replay_two_processes", "transitions sampled"),
        ("publication_two_processes", "versions taken whole"),
        ("isolated", "18 of 20 decisions were made"),
        ("own_network", " updates"),
    ],
)
def test_examples_that_need_nothing(name, last):
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 65
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert last in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "steps", "last"),
    [
        ("td3_pendulum", 1200, "without exploration"),
        ("dqn_remembers", 1200, "of 100 cues remembered"),
        ("ppo_cartpole", 4000, "the likeliest actions"),
        ("self_play", 3200, "against strong"),
        ("own_loss", 1500, " updates"),
        ("memory", 2048, "of the answers were right"),
        ("object_gridworld", 1200, "return of all agents"),
        ("partners", 1200, "beside the first run"),
        ("learn_both_phases", 700, "of the way from a random robot to the exact one"),
        ("learn_to_empower", 1200, "of the way from a random robot to the exact one"),
    ],
)
def test_examples_of_algorithms(name, steps, last, tmp_path):
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 60
    done = subprocess.run(
        [sys.executable, str(path), str(steps)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    done_steps = int(re.search(r"done after ([\d,]+) steps", done.stdout)[1].replace(",", ""))
    assert steps <= done_steps <= steps + 64, "whole rounds: a world whose episode ends closes two rows in one"
    assert last in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "size", "last"),
    [("evaluate", 6, "without isolation: True"), ("tournament", 2, "24 games, in")],
)
def test_examples_of_playing(name, size, last, tmp_path):
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 60
    done = subprocess.run(
        [sys.executable, str(path), str(size)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert last in done.stdout.splitlines()[-1]


def test_the_notebook():
    path = EXAMPLES / "notebook.ipynb"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the notebook's own packages
        notebook = nbformat.read(path, 4)
        assert not any(cell.get("outputs") for cell in notebook.cells)
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    text = "".join(out.get("text", "") for out in outputs)
    assert "6,000 of 6,000 steps" in text and "random:" in text
    shown = {kind for out in outputs for kind in out.get("data", ())}
    assert {"text/html", "image/png", "image/gif"} <= shown
