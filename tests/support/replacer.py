"""A process that replaces a folder until it is killed; without pytest, which each of its children would import."""

from pathlib import Path

from motet.system.files import replace_folder


def folder(path, text):
    """Make a folder that holds a text."""
    path.mkdir()
    (path / "content").write_text(text)
    return path


def replace_for_ever(path, number):
    """Put one folder after another into the place of the last one."""
    path = Path(path)
    while True:
        number += 1
        replace_folder(folder(path / f"fresh{number}", str(number)), path / "target")
