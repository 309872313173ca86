"""How the native core is built: its half without Python, and the variant that reads arrays by the buffer protocol only."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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
