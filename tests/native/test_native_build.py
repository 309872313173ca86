"""How the native core is built: a half without Python, and a variant that reads arrays by the buffer protocol only."""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import types
from ctypes import c_float
from pathlib import Path

import numpy as np
import pytest
from support import ROOT

from motet import _native

NATIVE = ROOT / "src" / "native"
CXX = os.environ.get("CXX", "g++")

pytestmark = pytest.mark.skipif(shutil.which(CXX) is None, reason=f"no C++ compiler ({CXX})")


@pytest.mark.parametrize("header", sorted(path.name for path in (NATIVE / "core").iterdir()))
def test_core_compiles_without_python(header):
    """Each header alone, without the folder of Python's headers, and with no file of the bindings."""
    done = subprocess.run(
        [
            CXX,
            "-std=c++17",
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-MD",
            "-MF",
            "-",
            f"-I{NATIVE}",
            "-x",
            "c++",
            "-",
        ],
        input=f'#include "core/{header}"\n',
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    included = done.stdout.replace("\\\n", " ").split()
    assert f"{NATIVE}/core/{header}" in included
    assert not [name for name in included if name.endswith("/Python.h") or name.startswith(f"{NATIVE}/python/")]


# ---- arrays read directly, or by the buffer protocol only


@pytest.fixture(scope="module")
def portable_build(tmp_path_factory):
    """A folder with motet and a core built with MOTET_PORTABLE=1; without optimisation, which takes half the time."""
    folder = tmp_path_factory.mktemp("portable")
    compiler = folder / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec {CXX} "$@" -O0 -g0\n')
    compiler.chmod(0o755)
    built, package = folder / "built", folder / "lib" / "motet"
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "-j2", "--build-lib", built, "--build-temp", folder / "temp"],
        cwd=ROOT,
        env=os.environ | {"MOTET_PORTABLE": "1", "CC": str(compiler), "CXX": str(compiler)},
        check=True,
    )
    package.mkdir(parents=True)
    for path in (ROOT / "src" / "motet").iterdir():
        if path.suffix not in (".so", ".pyd"):
            (package / path.name).symlink_to(path)
    (core,) = (built / "motet").iterdir()
    core.rename(package / core.name)
    return package.parent


@pytest.fixture(params=["environment", pytest.param("build", marks=pytest.mark.slow)])
def portable(request):
    """The environment of a process that reads arrays by the buffer protocol only: asked for, or built so."""
    environment = {name: value for name, value in os.environ.items() if name != "MOTET_PORTABLE"}
    if request.param == "environment":
        return environment | {"MOTET_PORTABLE": "1"}
    return environment | {"PYTHONPATH": str(request.getfixturevalue("portable_build"))}


def run(environment, *command):
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_portable_core_writes_the_same_rows_and_refuses_the_same_values(portable):
    direct = {name: value for name, value in os.environ.items() if name != "MOTET_PORTABLE"}
    first, second = (run(environment, "tests/native/rows.py") for environment in (direct, portable))
    assert (first.stderr, second.stderr) == ("", "")
    (how, *same), (other, *lines) = first.stdout.splitlines(), second.stdout.splitlines()
    assert (how, other) == ("True", "False")
    assert len(same) > 600 and same == lines


def test_portable_core_passes_the_tests_of_replays(portable):
    """Those with properties: what is read is what was written, whoever writes it in whatever pieces."""
    tests = ("test_replay_properties.py", "test_replay_writers.py")
    done = run(portable, "-m", "pytest", "-p", "no:cacheprovider", *(f"tests/replay/{name}" for name in tests))
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


class OtherDtype(np.ndarray):
    """Says another dtype than lies in its head."""

    dtype = property(lambda self: np.dtype("float64"))


class OtherHead(c_float * 3 * 2):
    """An array by the buffer protocol, and nothing like one in memory."""

    dtype = np.dtype("float32")
    T = property(lambda self: self)


@pytest.mark.parametrize(
    ("ndarray", "ones"),
    [
        (np.ndarray, lambda *given: np.ones(*given).view(OtherDtype)),
        (np.ndarray, lambda *given: OtherHead()),
        (object, np.ones),  # too small
    ],
    ids=["dtype", "head", "size"],
)
def test_arrays_are_not_read_directly_where_their_layout_is_another(ndarray, ones, monkeypatch, tmp_path):
    monkeypatch.delenv("MOTET_PORTABLE", raising=False)
    assert _load(tmp_path / "first").DIRECT_ARRAYS
    fake = types.ModuleType("numpy")
    fake.ndarray, fake.ones = ndarray, ones
    monkeypatch.setitem(sys.modules, "numpy", fake)
    assert not _load(tmp_path / "second").DIRECT_ARRAYS


def _load(folder: Path) -> types.ModuleType:
    """The core once more, from another file beside the one that is loaded."""
    folder.mkdir()
    copy = shutil.copy(_native.__file__, folder)
    loader = importlib.machinery.ExtensionFileLoader("motet._native", copy)
    return importlib.util.module_from_spec(importlib.util.spec_from_loader("motet._native", loader))
