"""What the README shows is there and works."""

import re
import subprocess
import sys

import pytest
from support import ROOT

TEXT = (ROOT / "README.md").read_text()


def anchors(page):
    """The anchors of a page's headings, as mkdocs and GitHub make them of plain words."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("link", sorted(set(re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', TEXT))), ids=str)
def test_every_link_leads_somewhere(link):
    path, _, anchor = "".join(link).partition("#")
    assert not path.startswith("http"), "links stay inside the repository"
    page = ROOT / path
    assert page.exists()
    if anchor:
        assert anchor in anchors(page)


def test_the_example_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(code.splitlines()) <= 10
    script = tmp_path / "first.py"
    script.write_text(code.replace("20_000", "1_000"))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "agent_1" in done.stdout and (tmp_path / "runs" / "first" / "config.json").exists()


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^make ([a-z]+)|`make ([a-z]+)`", TEXT, re.M))
    named = {"".join(pair) for pair in named}
    assert {"setup", "train", "test", "wheel"} <= named <= targets


def test_commands_are_taken(tmp_path):
    """Each command of the block, shortened, from the training to the report."""
    (block,) = re.findall(r"```\n(make setup.*?)```", TEXT, re.S)
    commands = [line for line in block.splitlines() if line.startswith(".venv/bin/motet")]
    assert len(commands) == 2
    for command in commands:
        command = command.replace(".venv/bin/motet", f"{sys.executable} -m motet").replace("30000", "400")
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_the_picture_is_small():
    assert (ROOT / "docs" / "pictures" / "treasure_hunt.gif").stat().st_size < 1_500_000
