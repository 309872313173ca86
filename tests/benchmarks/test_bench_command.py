"""``motet bench`` and ``python -m benchmarks``: where the benchmarks are found, and what is said if there are none."""

import dataclasses
import inspect
import json
import os
import shutil
import subprocess
import sys
import typing
import zipfile
from pathlib import Path

import pytest
from support import ROOT

from benchmarks import BENCHES, command
from motet import cli
from motet.cli import bench

assert (ROOT / "benchmarks").is_dir()
QUICK = ["--quick", "--repeats", "1", "--seconds", "0.01", "--json"]


def run(*arguments: str, cwd: Path, motet: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    """Python with motet in that folder, and nothing else on its path."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(motet)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def no_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.delitem(sys.modules, "benchmarks", raising=False)


@pytest.mark.usefixtures("no_benchmarks")
def test_without_benchmarks_one_line_says_how_to_get_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "replay", "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == f"error: {bench.ABSENT}\n"
    assert "clone the repository" in shown.err and "pip install -e ." in shown.err


@pytest.mark.usefixtures("no_benchmarks")
@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["replay", "--help"]])
def test_help_without_benchmarks(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *arguments]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: motet bench NAME") and bench.ABSENT in shown


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working directory with a package of the same name, as other projects have it."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('the benchmarks of another project')\n")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "plan",  # an interpreter of its own for one job
        "bell",  # a fork server and its children
        pytest.param("ray", marks=pytest.mark.slow),  # workers of Ray
    ],
)
def test_children_find_the_benchmarks_wherever_the_user_is(name: str, elsewhere: Path) -> None:
    done = run("motet", "bench", name, *QUICK, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bench"] == name


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python files that a wheel holds."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("installed")
    command = ["setup.py", "-q", "egg_info", "--egg-base", str(folder), "build_py", "--build-lib", str(folder / "lib")]
    subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, timeout=120, check=True)
    return folder / "lib"


def test_an_installed_package_says_that_it_has_no_benchmarks(installed: Path, tmp_path: Path) -> None:
    assert {path.name for path in installed.iterdir()} == {"motet"}
    assert (installed / "motet" / "cli" / "bench.py").is_file()
    assert not [path for path in installed.rglob("*") if path.name in ("benchmarks", "_bench")]
    done = run("motet", "bench", "replay", cwd=tmp_path, motet=installed)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {bench.ABSENT}\n")


def test_a_clone_needs_no_editable_install(installed: Path) -> None:
    done = run("benchmarks", "--help", cwd=ROOT, motet=installed)
    assert done.returncode == 0, done.stderr
    assert "motet bench" in done.stdout and "--rllib-python" in done.stdout


@pytest.mark.slow
def test_a_wheel_has_no_benchmarks(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "*.so", "*.egg-info", "build", "tests", "docs"))
    command = ["pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(tree)]
    subprocess.run([sys.executable, "-m", *command], capture_output=True, timeout=300, check=True)
    (wheel,) = tmp_path.glob("motet-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"motet"}
    assert "motet/cli/bench.py" in names
    assert not [name for name in names if "benchmarks" in name or "_bench/" in name]


def test_completion_knows_the_flags_of_the_benchmarks():
    """They are written down twice: a shell completes them where there are no benchmarks, too."""
    flags = {item.name: item for item in dataclasses.fields(bench.BenchFlags)}
    known = inspect.signature(command.bench).parameters
    assert list(flags) == list(known)
    assert {name: flags[name].default for name in flags if name != "name"} == {
        name: one.default for name, one in known.items() if name != "name"
    }
    names = typing.get_type_hints(bench.BenchFlags)["name"]
    assert set(typing.get_args(names)) == set(BENCHES)
