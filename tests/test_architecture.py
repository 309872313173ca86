"""What docs/architecture.md says is so: rooms, floors, invariants, walks and file formats."""

import ast
import functools
import importlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "motet"
SECTIONS = {
    part.partition("\n")[0]: part.partition("\n")[2]
    for part in re.split(r"^##+ ", (ROOT / "docs" / "architecture.md").read_text(), flags=re.M)
}
WALKS = ["A transition", "A transition on Ray", "A planned state", "An isolated decision"]
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]


def rows(section):
    """The cells of all tables of a section, without their heads."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    heads = {i - 1 for i, line in enumerate(lines) if set(line) <= set("|- ")}
    lines = [line for i, line in enumerate(lines) if i not in heads and i - 1 not in heads]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def quoted(text):
    return re.findall(r"`([^`]+)`", text)


def resolved(module, name):
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


@functools.cache
def all_tests():
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}


def test_every_room_is_listed_and_every_room_listed_is_there():
    listed = [quoted(row[0])[0] for row in rows("Rooms")]
    there = [f"motet.{path.parent.name}" for path in SOURCE.glob("[!_]*/__init__.py")]
    assert sorted(listed) == sorted(there)


def test_every_module_beside_the_rooms_is_listed_and_there():
    _, _, beside = SECTIONS["Rooms"].partition("Beside them")
    there = [path.stem for path in SOURCE.glob("[!_]*.py")]
    assert sorted(quoted(beside)) == sorted(there)


def test_floors_are_those_that_are_checked():
    floors = [quoted(line) for line in re.findall(r"^\d+\. (.*)$", SECTIONS["Floors"], re.M)]
    checked = [re.split(r" [|:] ", layer) for layer in LAYERS]
    assert floors[:-1] == checked[:-1]
    _, _, ground = SECTIONS["Rooms"].partition("the ground:")
    assert set(quoted(ground)) == {name for name in checked[-1] if not name.startswith("_")}


def test_every_invariant_has_tests_that_exist():
    table = rows("Invariants")
    assert [row[0] for row in table] == [f"I{i}" for i in range(1, 9)]
    for number, _, tests in table:
        assert quoted(tests) and set(quoted(tests)) <= all_tests(), number


@pytest.mark.parametrize("walk", WALKS)
def test_every_function_of_a_walk_exists(walk):
    for _, file, function, what in rows(walk):
        (path,), (name,) = quoted(file), quoted(function)
        assert (SOURCE / path).is_file(), path
        module = ".".join(["motet", *Path(path).with_suffix("").parts])
        found = resolved(module, name)
        if not path.endswith(".pyi"):
            home, qualified = found.__module__, found.__qualname__
            assert (home, qualified) == (module, name), f"{name} is only imported by {path}"
        assert what


@pytest.mark.parametrize("walk", WALKS)
def test_steps_of_a_walk_are_numbered(walk):
    numbers = [int(row[0]) for row in rows(walk)]
    starts = [i for i, number in enumerate(numbers) if number == 1]
    for first, last in zip(starts, [*starts[1:], len(numbers)], strict=True):
        assert numbers[first:last] == list(range(1, last - first + 1))


# ---- file formats


def marks():
    """The marks of what the native core writes, by file."""
    for path in (ROOT / "src" / "native").rglob("*.hpp"):
        for number in re.findall(r"kMagic = (0x[0-9a-f]+)ull", path.read_text()):
            yield path.name, int(number, 16).to_bytes(8, "little").decode()


def constants():
    """Every number of a format in the sources: module, name."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name) and re.fullmatch(r"_?(\w+_)?FORMAT", target.id):
                        yield ".".join(["motet", *path.relative_to(SOURCE).with_suffix("").parts, target.id])


def test_versions_in_the_table_of_formats_are_those_in_the_code():
    listed = {}
    for _, writers, version, defined, older in rows("File formats"):
        assert older and quoted(writers)
        listed[quoted(defined)[-1]] = version.strip("`")
        for name in quoted(writers):
            module, _, last = name.rpartition(".")
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                parent, _, kind = module.rpartition(".")
                resolved(*(parent, f"{kind}.{last}") if kind[0].isupper() else (module, last))
    for name in constants():
        assert listed[name] == str(resolved(*name.rsplit(".", 1))), name
    text = SECTIONS["File formats"]
    for file, mark in marks():
        assert f"`{mark}`" in text and f"`kMagic` in `{file}`" in text
    assert set(listed) == {*constants(), "lane.hpp"}
