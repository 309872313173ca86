import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from motet.algorithm import Field, ReaderSettings, SavesStream, stacked_batch
from motet.algorithms import DQNConfig, IQNConfig, PPOConfig, TD3Config
from motet.algorithms._dqn_learner import DQN
from motet.algorithms._value import ValueBehaviour
from motet.errors import SettingError, SpecError
from motet.replay import Replay, ReplaySpec
from motet.runs.plain import decode, encode
from motet.schedule import Exponential, Linear, value_at
from motet.testing.algorithm import check_algorithm


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
        {"batch_size": 0}, {"gamma": -0.1}, {"alpha": 1.1}, {"beta": Linear(0, 2, 5)}, {"length": -1}, {"once": True},
        {"once": True, "length": 3, "prioritised": True}, {"min_rows": 9, "capacity": 8}, {"n_step": 0},
        {"n_frames": 0}, {"burn_in": 1}, {"length": 3, "burn_in": 3}, {"once": True, "length": 3, "burn_in": 1},
        {"length": 3, "n_step": 256},
    ],
)  # fmt: skip
def test_settings_that_contradict_raise(wrong) -> None:
    with pytest.raises(SettingError):
        ReaderSettings(**{"batch_size": 4, **wrong})


def test_a_stacked_batch_has_the_shapes_of_its_settings() -> None:
    space = Dict(a=Box(0, 1, (2,)), b=Discrete(3))
    extra = {"mask": Field((4,), "bool", next=True), "chance": Field()}
    batch = stacked_batch(space, Discrete(4), ReaderSettings(batch_size=5, n_frames=3, extra=extra), agents=2)
    assert batch.observation["a"].shape == (2, 5, 3, 2) and batch.next_observation["b"].shape == (2, 5, 3)
    assert set(batch.next_extra) == {"mask"} and batch.extra["chance"].shape == (2, 5) and batch.weight is None
    part = batch.agent(1)
    part.observation["a"][:] = 7
    assert batch.observation["a"][1].min() == 7 and batch.observation["a"][0].max() == 0
    once = stacked_batch(space, Discrete(4), ReaderSettings(batch_size=5, once=True, length=6, extra=extra), agents=2)
    assert (
        once.observation["a"].shape == (2, 5, 7, 2) and once.action.shape == (2, 5, 6) and once.next_observation is None
    )
    assert once.extra["mask"].shape == (2, 5, 7, 4) and once.valid is not None
    settings = ReaderSettings(batch_size=5, length=6, burn_in=2, n_step=3, prioritised=True, extra=extra)
    many = stacked_batch(space, Discrete(4), settings, agents=2)
    assert many.observation["a"].shape == (2, 5, 9, 2) and many.extra["mask"].shape == (2, 5, 9, 4)
    assert many.action.shape == many.reward.shape == many.valid.shape == many.ahead.shape == (2, 5, 6)
    assert many.row.shape == many.lane.shape == many.weight.shape == (2, 5) and many.next_observation is None
    assert (settings.learned_rows, settings.stride, settings.reads_ahead) == (4, 4, 8)


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
    monkeypatch.setattr("motet.algorithms._dqn_learner.DQN", Broken)
    monkeypatch.setattr(Broken, "fault", fault)
    with pytest.raises(SpecError, match=clause):
        check_algorithm(DQNConfig(hidden=(8,), batch_size=4, min_rows=4), Box(0, 1, (3,)), Discrete(2))


STREAMS = {
    "half": ({"set_stream": None}, "both get_stream and set_stream"),
    "object": ({"get_stream": lambda self: self._rng}, "plain values"),
    "forgets": ({"set_stream": lambda self, stream: None}, "acts as it would have without the interruption"),
}


@pytest.mark.parametrize("fault", STREAMS)
def test_streams_that_cannot_be_continued_are_named(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    methods, clause = STREAMS[fault]
    for name, method in methods.items():
        if method is None:
            owner = next(cls for cls in ValueBehaviour.__mro__ if name in vars(cls))
            monkeypatch.delattr(owner, name)
        else:
            monkeypatch.setattr(ValueBehaviour, name, method)
    with pytest.raises(SpecError, match=clause):
        check_algorithm(DQNConfig(hidden=(8,), batch_size=4, min_rows=4), Box(0, 1, (3,)), Discrete(2))


@pytest.mark.parametrize(
    ("config", "actions"),
    [
        (DQNConfig(hidden=(4,)), Discrete(9)),
        (IQNConfig(hidden=(4,)), Discrete(9)),
        (PPOConfig(hidden=(4,)), Discrete(9)),
        (PPOConfig(hidden=(4,)), Box(-1, 1, (2,))),
        (TD3Config(hidden=(4,), noise=0.3, noise_memory=0.9), Box(-1, 1, (2,))),
    ],
)
def test_every_shipped_behaviour_saves_its_stream_with_all_that_lasts(config, actions) -> None:
    seen = np.zeros((5, 3), np.float32)
    learner = config.build(Box(0, 1, (3,)), actions, 1, [0])
    header = learner.header(10**6, 0)
    header |= {"random": False} if "random" in header else {}  # as after the first update
    behaviours = [config.behaviour(Box(0, 1, (3,)), actions) for _ in range(2)]
    for seed, behaviour in enumerate(behaviours):
        assert isinstance(behaviour, SavesStream)
        behaviour.begin(seed)
        behaviour.load(learner.weights()[0], header)
    one, other = behaviours
    for _ in range(3):
        one.act(seen)
    kept = decode(encode(one.get_stream()))
    expected = [one.act(seen)[0] for _ in range(3)]
    other.set_stream(kept)
    np.testing.assert_array_equal([other.act(seen)[0] for _ in range(3)], expected)
    one.set_stream(kept)  # what was saved is a copy
    np.testing.assert_array_equal([one.act(seen)[0] for _ in range(3)], expected)


def test_importing_the_contracts_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, motet.algorithm, motet.policy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_batch_without_next_observations():
    space = Box(0, 1, (3,))
    settings = ReaderSettings(batch_size=4, next_observation=False)
    replay = Replay(ReplaySpec(observation=space, action=Discrete(2), capacity=20))
    writer, reader = replay.writer(), replay.reader(seed=0)
    for t in range(6):
        writer.append(np.full(3, t, np.float32), 1, float(t))
    batch = reader.bind(stacked_batch(space, Discrete(2), settings, agents=1).agent(0))
    reader.sample(4, into=batch)
    assert batch.next_observation is None
    np.testing.assert_array_equal(batch.observation[:, 0], batch.reward)
