import json
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.checkpoint import Checkpoint, RunDirectory, decode, encode
from motet.errors import CorruptionError, SettingError


def make(step=5, scale=1.0):
    agents = {"a": {"state": np.arange(4, dtype=np.float32) * scale, "counters": np.array([step])}}
    return Checkpoint(step, agents, {"worlds": [(1, b"x", 2**100)]}, {"a": {"lane0": np.zeros(64, np.uint8)}})


def test_what_is_saved_is_what_is_loaded(tmp_path):
    run = RunDirectory.prepare(tmp_path / "run").begin({"world": "hunt"})
    run.save(make())
    found = RunDirectory.open(tmp_path / "run").load()
    assert (found.step, found.notes) == (5, {"worlds": [(1, b"x", 2**100)]})
    np.testing.assert_array_equal(found.agents["a"]["state"], make().agents["a"]["state"])
    assert found.replay["a"]["lane0"].shape == (64,)
    assert run.config()["world"] == "hunt"


def test_only_the_newest_are_kept_and_none_is_half_written(tmp_path, monkeypatch):
    run = RunDirectory.prepare(tmp_path / "run").begin({})
    for step in (1, 2, 3):
        run.save(make(step))
    assert run.steps() == [2, 3]

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        run.save(make(4))
    monkeypatch.undo()
    assert run.steps() == [2, 3]
    assert not [p for p in run.checkpoints.iterdir() if p.name.startswith(".")]
    assert run.load().step == 3


def test_the_best_takes_the_place_of_the_former_best(tmp_path):
    run = RunDirectory.prepare(tmp_path / "run").begin({})
    run.save_best(make(1))
    run.save_best(make(2, scale=3.0))
    assert json.loads((run.path / "best" / "checkpoint.json").read_text())["step"] == 2
    assert sorted(p.name for p in run.path.iterdir()) == ["best", "checkpoints", "config.json", "logs"]


def test_whoever_goes_on_knows_how_good_the_best_was(tmp_path):
    run = RunDirectory.prepare(tmp_path / "run").begin({})
    assert run.best_score() == -math.inf
    run.save_best(Checkpoint(5, make(5).agents, {"score": 12.5}))
    assert RunDirectory(run.path).best_score() == 12.5
    (run.path / "best" / "checkpoint.json").write_text('{"notes": []}')
    with pytest.raises(CorruptionError, match="does not say how well"):
        run.best_score()


def test_bad_directories_are_named(tmp_path):
    with pytest.raises(SettingError, match=r"no config\.json"):
        RunDirectory.open(tmp_path)
    run = RunDirectory.prepare(tmp_path / "run").begin({})
    with pytest.raises(SettingError, match="holds a run already"):
        RunDirectory.prepare(tmp_path / "run").begin({})
    with pytest.raises(SettingError, match="no checkpoint"):
        run.load()
    run.save(make())
    with pytest.raises(SettingError, match=r"step: given 7, expected one of the checkpoints \[5\]"):
        run.load(7)
    (run.checkpoints / f"{5:012d}" / "a.safetensors").write_bytes(b"rubbish")
    with pytest.raises(CorruptionError, match="cannot be read"):
        run.load()
    run.write_json("config.json", {"format": 99, "motet": "9.9"})
    with pytest.raises(SettingError, match=r"format 99.*written by motet 9\.9"):
        RunDirectory.open(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot be written"):
        RunDirectory.prepare(tmp_path / "file" / "run").begin({})


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(plain)
def test_plain_values_survive_json(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_arrays_survive_and_objects_are_refused():
    for array in (np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(1.5), np.zeros((0, 2), np.uint8)):
        back = decode(json.loads(json.dumps(encode(array))))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
    with pytest.raises(SettingError, match="without pickle"):
        encode(object())
