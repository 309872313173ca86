"""Replacing files and folders: at any moment either the old or the new one exists."""

import sys
import time
from pathlib import Path

import pytest
from support.replacer import folder, replace_for_ever

from motet.system import files as _files
from motet.system.child import Child
from motet.system.files import replace_folder


@pytest.fixture(params=[True, False], ids=["exchanged", "renamed"])
def way(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(_files, "_exchange", lambda one, other: False)


def test_a_folder_takes_the_place_of_another(tmp_path, way):
    for text in ("first", "second"):
        replace_folder(folder(tmp_path / "fresh", text), tmp_path / "target")
        assert (tmp_path / "target" / "content").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()], ids=["disk", "interrupt"])
def test_the_old_folder_stays_if_the_new_one_cannot_be_written(tmp_path, monkeypatch, failing, error):
    monkeypatch.setattr(_files, "_exchange", lambda one, other: False)
    folder(tmp_path / "target", "first")
    fresh, rename, calls = folder(tmp_path / "fresh", "second"), Path.rename, []

    def fails(path, new):
        calls.append(path)
        if len(calls) == failing:
            raise error
        return rename(path, new)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(type(error)):
        replace_folder(fresh, tmp_path / "target")
    assert (tmp_path / "target" / "content").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "target"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a kill may come between two renames")
def test_a_killed_process_leaves_one_of_them_whole(tmp_path):
    folder(tmp_path / "target", "0")
    last = 0
    for k in range(40):
        child = Child("replacer", replace_for_ever, (str(tmp_path), 10**6 * (k + 1)))
        deadline = time.monotonic() + 60
        while _number(tmp_path / "target") < 10**6 * (k + 1) + 3 + k:
            assert time.monotonic() < deadline and child.exit is None
        child.kill()
        child.close()
        now = int((tmp_path / "target" / "content").read_text())  # nobody replaces it now: it must be there
        assert now > last
        last = now


def _number(path):
    try:
        return int((path / "content").read_text())
    except FileNotFoundError:  # it was replaced between finding the folder and opening the file
        return 0
