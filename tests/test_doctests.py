"""The examples in docstrings say what happens."""

import doctest
import importlib
import pkgutil

import pytest

import motet

MODULES = [name for _, name, _ in pkgutil.walk_packages(motet.__path__, "motet.")]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "motet._native"])
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
