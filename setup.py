"""Compiles the native core: plain C API, one abi3 extension for every CPython from 3.11 on.

``MOTET_SANITIZE=address,undefined`` or ``=thread`` builds it with sanitizers (see ``make sanitize``).
``MOTET_PORTABLE=1`` builds it without its knowledge of numpy's objects: arrays are read by the buffer protocol only.
"""

import glob
import os
import sys

from setuptools import Extension, setup

flags = (
    ["/std:c++17", "/O2"]
    if sys.platform == "win32"
    else ["-std=c++17", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra"]
)
link: list[str] = []
if sanitize := os.environ.get("MOTET_SANITIZE"):
    flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g", "-O1"]
    link += [f"-fsanitize={sanitize}"]
macros: list[tuple[str, str | None]] = [("Py_LIMITED_API", "0x030B0000"), ("PY_SSIZE_T_CLEAN", None)]
if os.environ.get("MOTET_PORTABLE") == "1":
    macros.append(("MOTET_PORTABLE", None))

setup(
    ext_modules=[
        Extension(
            "motet._native",
            sources=sorted(glob.glob("src/native/python/*.cpp")),
            depends=sorted(glob.glob("src/native/*/*.hpp")),
            include_dirs=["src/native"],
            define_macros=macros,
            py_limited_api=True,
            extra_compile_args=flags,
            extra_link_args=link,
            language="c++",
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
