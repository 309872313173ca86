import pytest
from gymnasium.spaces import Box, Dict, Discrete

from motet._testing_algorithm import check_algorithm
from motet.algorithm import Exponential, ExtraField, Linear, ReaderSettings, StackedBatch, value_at
from motet.algorithms import DQNConfig
from motet.algorithms.dqn import DQN
from motet.errors import SettingError, SpecError


def test_schedules() -> None:
    linear, exponential = Linear(1.0, 0.2, steps=4), Exponential(1.0, 0.2, half_life=2)
    assert [round(linear(step), 6) for step in (-1, 0, 1, 2, 4, 9)] == [1.0, 1.0, 0.8, 0.6, 0.2, 0.2]
    assert [round(exponential(step), 6) for step in (0, 2, 4, 10_000)] == [1.0, 0.6, 0.4, 0.2]
    assert value_at(3, 7) == 3.0
    for wrong in (lambda: Linear(0, 1, 0), lambda: Linear(0, float("nan"), 5), lambda: Exponential(0, 1, 0)):
        with pytest.raises(SettingError):
            wrong()


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0}, {"gamma": -0.1}, {"alpha": 1.1}, {"beta": Linear(0, 2, 5)}, {"length": 3}, {"once": True},
        {"once": True, "length": 3, "prioritised": True}, {"min_rows": 9, "capacity": 8}, {"n_step": 0},
        {"n_frames": 0},
    ],
)  # fmt: skip
def test_settings_that_contradict_raise(wrong) -> None:
    with pytest.raises(SettingError):
        ReaderSettings(**{"batch_size": 4, **wrong})


def test_a_stacked_batch_has_the_shapes_of_its_settings() -> None:
    space = Dict(a=Box(0, 1, (2,)), b=Discrete(3))
    extra = {"mask": ExtraField((4,), "bool", next=True), "chance": ExtraField()}
    batch = StackedBatch.zeros(space, Discrete(4), ReaderSettings(batch_size=5, n_frames=3, extra=extra), agents=2)
    assert batch.observation["a"].shape == (2, 5, 3, 2) and batch.next_observation["b"].shape == (2, 5, 3)
    assert set(batch.next_extra) == {"mask"} and batch.extra["chance"].shape == (2, 5) and batch.weight is None
    part = batch.agent(1)
    part.observation["a"][:] = 7
    assert batch.observation["a"][1].min() == 7 and batch.observation["a"][0].max() == 0
    once = StackedBatch.zeros(
        space, Discrete(4), ReaderSettings(batch_size=5, once=True, length=6, extra=extra), agents=2
    )
    assert (
        once.observation["a"].shape == (2, 5, 7, 2) and once.action.shape == (2, 5, 6) and once.next_observation is None
    )
    assert once.extra["mask"].shape == (2, 5, 7, 4) and once.valid is not None


class Broken(DQN):
    """A DQN with one fault, named by the class attribute."""

    fault = ""

    def update(self, batch, steps):
        if self.fault == "batch":
            batch.reward += 1
        if self.fault == "crossing":
            self.state[1:, : self.n_weights] += 0.1 * self.state[:1, : self.n_weights]
        return super().update(batch, steps)

    def load(self):
        if self.fault != "load":
            super().load()

    def header(self, step, agent):
        return {} if self.fault == "header" else super().header(step, agent)


@pytest.mark.parametrize(
    ("fault", "clause"),
    [("batch", "does not change the batch"), ("load", "bit for bit"), ("header", "header"), ("crossing", "alone")],
)
def test_broken_algorithms_are_named(monkeypatch: pytest.MonkeyPatch, fault: str, clause: str) -> None:
    monkeypatch.setattr("motet.algorithms.dqn.DQN", Broken)
    monkeypatch.setattr(Broken, "fault", fault)
    with pytest.raises(SpecError, match=clause):
        check_algorithm(DQNConfig(hidden=(8,), batch_size=4, min_rows=4), Box(0, 1, (3,)), Discrete(2))


def test_importing_the_contracts_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, motet.algorithm, motet.policy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
