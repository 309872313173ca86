"""Every dotted name of motet that a message, a docstring or a page mentions is there, as a user would type it."""

import ast
import importlib
import re

import pytest
from support import ROOT

PAGES = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]  # a changelog may mention what has gone
SCRIPTS = [*ROOT.glob("examples/*.py"), *ROOT.glob("examples/*.toml")]
NAME = re.compile(r"(?<![\w./:-])motet(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*)?")
IMPORT = re.compile(r"^[>. ]*from (motet[\w.]*) import (\([^)]*\)|[^#\n]+)", re.M)
EARLIER = ROOT / "src/motet/system/imports.py"  # has names of earlier versions, which files may hold
NOT_NAMES = {"motet.plain"}  # the name of an error handler for codecs


def texts():
    """Where a text is, and the text: string literals of the sources, whole pages and examples."""
    for path in {*ROOT.glob("src/motet/**/*.py"), *ROOT.glob("benchmarks/*.py")} - {EARLIER}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.value
    for path in [*PAGES, *SCRIPTS]:
        yield path, path.read_text()


def mentions():
    """Each name, with the files that mention it: ``motet.a.b``, ``motet.a:b``, and ``from motet.a import b``."""
    found = {}
    for path, text in texts():
        names = NAME.findall(text)
        for module, imported in IMPORT.findall(text):
            names += [f"{module}:{name.split()[0]}" for name in imported.strip("() \n").split(",") if name.strip()]
        for name in set(names) - NOT_NAMES:
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


def find(name):
    """What a name stands for: ``a:b`` is imported; ``a.b.c`` is typed, after an import of as much as is a module."""
    path, _, attribute = name.partition(":")
    if attribute:
        module = importlib.import_module(path)
        if not hasattr(module, attribute):
            importlib.import_module(f"{path}.{attribute}")
        return getattr(module, attribute)
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        try:
            importlib.import_module(".".join(parts[:end]))
        except ImportError:
            break
    found = importlib.import_module(parts[0])
    for part in parts[1:]:
        found = getattr(found, part)
    return found


def test_every_name_that_is_mentioned_exists():
    wrong = {}
    for name, where in mentions().items():
        try:
            find(name)
        except (AttributeError, ImportError) as error:
            wrong[name] = f"{error}; mentioned in {', '.join(sorted(where))}"
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in sorted(wrong.items()))


@pytest.mark.parametrize(
    "name", ["motet.train.resume", "motet.nothing", "motet.nothing:x", "motet.training.run:nothing"]
)
def test_a_name_that_a_user_cannot_type_is_found_out(name):
    with pytest.raises((AttributeError, ImportError)):
        find(name)


@pytest.mark.parametrize("name", ["motet.resume", "motet.training.run:resume", "motet.testing.check_world"])
def test_names_that_work_pass(name):
    assert find(name)


def test_there_are_names_of_every_kind():
    found = mentions()
    assert {"motet.testing.check_world", "motet.policy:ConstantPolicy", "motet.schedule:Linear"} <= set(found)
    kinds = {where.partition("/")[0] for files in found.values() for where in files}
    assert kinds >= {"src", "docs", "examples", "README.md"}
