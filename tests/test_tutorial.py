"""The tutorial works as it is written: its files and commands, in order, with fewer steps and episodes."""

import re
import shlex
import subprocess
import sys

from support import ROOT

from motet.cli import main

PAGE = ROOT / "docs" / "tutorial.md"
SHORTER = {
    "steps = 30_000": "steps = 1_500",
    "evaluate_every = 3_000": "evaluate_every = 500",
    "--steps 12000": "--steps 600",
    "--steps 18000": "--steps 900",
    "--episodes 200": "--episodes 4",
}
FENCE = re.compile(r"(?:Save this as `(?P<file>[^`]+)`:\n\n)?^```(?P<kind>[a-z]*)\n(?P<text>.*?)^```$", re.M | re.S)


def parts(text):
    """The files to save, by name, and the command lines to run, in the order of the page."""
    for found in FENCE.finditer(text):
        if found["file"]:
            yield found["file"], found["text"]
        elif found["kind"] == "sh":
            yield from ((None, line) for line in found["text"].splitlines())


def test_the_tutorial_runs_from_the_world_to_the_figure(tmp_path, monkeypatch, capsys):
    text = PAGE.read_text()
    for long, short in SHORTER.items():
        assert long in text
        text = text.replace(long, short)
    text = text.replace('algorithm = "dqn"', 'algorithm = "dqn"\nengine = "serial"')  # starts in less time
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the commands add the working folder
    monkeypatch.setenv("MPLBACKEND", "Agg")
    files, commands = set(), []
    try:
        for file, part in parts(text):
            if file:
                files.add(file)
                (tmp_path / file).write_text(part)
                continue
            program, *arguments = shlex.split(part)
            commands.append(program if program == "python" else arguments[0])
            if program == "python":
                done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)
                assert done.returncode == 0, f"{part}\n{done.stdout}{done.stderr}"
            else:  # in this process: starting one for each takes most of the time
                assert program == "motet"
                assert main(arguments) == 0, part
                printed = capsys.readouterr().out
                if arguments[0] == "report":
                    assert printed.startswith("all runs: runs/orchard-0, runs/orchard-1, runs/orchard-2\n"), "one group"
    finally:
        sys.modules.pop("orchard", None)
    assert files == {"orchard.py", "check.py", "orchard.toml", "figure.py"}
    assert set(commands) == {"python", "train", "status", "resume", "eval", "report"}
    for made in ("figure.pdf", "curves.csv", "seeds.json", "report.html", "runs/orchard-0/episode.gif"):
        assert (tmp_path / made).stat().st_size > 500, made


def test_every_python_block_is_a_file():
    blocks = re.findall(r"^```python\n", PAGE.read_text(), re.M)
    assert len(blocks) == len([file for file, _ in parts(PAGE.read_text()) if file and file.endswith(".py")])


def test_the_picture_is_small():
    assert (ROOT / "docs" / "pictures" / "tutorial_curve.png").stat().st_size < 150_000
