"""One word, one meaning: no two classes share a name, and no retired word names a class, function or parameter."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "motet"
RETIRED = {
    *("beat", "birth", "book", "cell", "course", "crew", "crowd", "desk", "edition", "hands", "look", "luggage"),
    *("misfit", "place", "predecessor", "seat", "stranger", "successor", "told", "warden"),
}
EXCEPTIONS = {
    # Seats of a game, in which policies sit: the word of the -p notation.
    "cli/": {"seat"},
    "evaluation/": {"seat"},
    "policies/": {"seat"},
    "isolation/players.py": {"seat"},
    # Cells of tables.
    "reports/": {"cell", "seat"},
    "runs/display.py": {"cell"},
    # What a transition leads to: the word of the field.
    "plan/": {"successor"},
    "worlds/rooms/": {"successor"},
    # What an agent sees now: the fast path of an in-turn world, and the same of a batch of worlds.
    "world/batch.py": {"look"},
    "worlds/treasure_hunt/": {"look"},
    "training/opponents.py": {"look", "place"},
    # The verb of a heartbeat.
    "training/board.py": {"beat"},
    "training/": {"look"},
    "algorithms/": {"look", "place"},
    "algorithms/_model_rows.py": {"successor"},
    "cli/experiment.py": {"stranger"},
    "cli/flags.py": {"place"},
}


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())


def words(name: str) -> set[str]:
    """The words of an identifier, in the singular.

    >>> sorted(words("_SeatGroups")), sorted(words("look_at"))
    (['group', 'seat'], ['at', 'look'])
    """
    found = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    return {word if word in RETIRED else word.removesuffix("s") for word in found}


def names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Of classes, functions and parameters, with their lines."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_class_names_are_unique():
    homes = defaultdict(list)
    for file, module in parsed():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(f"{file}:{node.lineno}")
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_retired_words_name_nothing():
    found = []
    for file, module in parsed():
        allowed = set().union(*(words for path, words in EXCEPTIONS.items() if file.startswith(path)))
        found += [f"{file}:{line} {name}" for line, name in names(module) if words(name) & RETIRED - allowed]
    assert found == []
