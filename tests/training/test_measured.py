"""What worlds report in ``info["metrics"]`` becomes means per episode, everywhere metrics go."""

import io
import json
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from rich.console import Console

from motet import Settings, report, train
from motet.algorithms.dqn import DQNConfig
from motet.errors import WorldError
from motet.runs.display import History, frame, rows_gone
from motet.runs.episodes import read_episodes
from motet.runs.history import read_run
from motet.runs.sinks import scalars
from motet.world.batch import LoopedWorlds
from motet.world.contract import as_world

QUICK = DQNConfig(hidden=(8,), batch_size=8, min_rows=16)
SERIAL = Settings(steps=60, engine="serial", evaluate_every=30, evaluate_episodes=2)
EYES, HANDS = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)


class Walk(gymnasium.Env):
    """A Gymnasium environment as people write it: numbers in its info."""

    observation_space, action_space = EYES, HANDS

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return np.zeros(2, np.float32), {"metrics": {"begun": 1.0}}

    def step(self, action):
        self.turn += 1
        info = {"metrics": {"speed": self.turn, "fell": self.turn == 4, "half": np.float32(0.5)}}
        return np.zeros(2, np.float32), 1.0, self.turn == 4, False, info


class Fruits(ParallelEnv):
    """A PettingZoo environment whose agents report their own numbers, at the end of an episode."""

    possible_agents = ("ann", "bob")

    def observation_space(self, agent):
        return EYES

    def action_space(self, agent):
        return HANDS

    def reset(self, seed=None, options=None):
        self.agents, self.turn = list(self.possible_agents), 0
        return {name: np.zeros(2, np.float32) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions):
        self.turn += 1
        over = self.turn == 3
        seen = {name: np.zeros(2, np.float32) for name in self.agents}
        infos = {name: {"metrics": {"fruits": 2.0 + i}} if over else {} for i, name in enumerate(self.agents)}
        infos["all"] = {"metrics": {"weather": 5.0}}
        ends = dict.fromkeys(self.agents, over)
        given = dict.fromkeys(self.agents, 1.0)
        self.agents = [] if over else self.agents
        return seen, given, ends, dict.fromkeys(ends, False), infos


class Turns(AECEnv):
    """Two agents in turn; an info stays until its agent acts again."""

    possible_agents = ("one", "two")
    observation_space, action_space = (lambda self, agent: EYES), (lambda self, agent: HANDS)

    def reset(self, seed=None, options=None):
        self.agents, self.turn = list(self.possible_agents), 0
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {name: {} for name in self.agents}
        self.agent_selection = "one"

    def observe(self, agent):
        return np.zeros(2, np.float32)

    def step(self, action):
        name = self.agent_selection
        if self.terminations[name]:
            self._was_dead_step(action)
            return
        self.turn += 1
        self.infos[name] = {"metrics": {"turn": self.turn}}
        self.agent_selection = "two" if name == "one" else "one"
        if self.turn == 4:
            self.terminations = dict.fromkeys(self.agents, True)


class Swarm(Walk):
    """The same walk, with its worlds as arrays."""

    def vector(self, worlds):
        return Swarms(worlds)


class Swarms:
    agents, observation_spaces, action_spaces = ("agent_0",), (EYES,), (HANDS,)
    can_save = False

    def __init__(self, worlds):
        self.worlds, self.turn = worlds, np.zeros(worlds, int)

    def reset(self, worlds, seeds):
        self.turn[worlds] = 0

    def group(self):
        return (0,)

    def observe(self, agent):
        return np.zeros((self.worlds, 2), np.float32)

    def act(self, actions):
        self.turn += 1

    def reward(self, agent):
        return np.ones(self.worlds)

    def ended(self):
        return self.turn == 4, np.zeros(self.worlds, bool)

    def metrics(self):
        return {"speed": self.turn * 2.5 / 4, "number": np.arange(self.worlds)}


WALK = {"begun": 1.0, "speed": 2.5, "fell": 0.25, "half": 0.5}
FRUITS = {"ann/fruits": 2.0, "bob/fruits": 3.0, "weather": 5.0}
TURNS = {"one/turn": 2.0, "two/turn": 3.0}


@pytest.mark.parametrize(("world", "expected"), [(Walk, WALK), (Fruits, FRUITS), (Turns, TURNS)])
def test_numbers_of_infos_are_means_per_episode_in_a_run(world, expected, tmp_path):
    seen = []
    train(world, QUICK, SERIAL, run=tmp_path / "run", on_update=seen.append)
    last = seen[-1]
    assert last.metrics == expected
    assert all(line["metrics"] == expected for line in read_episodes(tmp_path / "run").lines)
    evaluated = [json.loads(line) for line in (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()]
    assert evaluated and all(line["metrics"] == expected for line in evaluated)
    assert all(f"metrics.{name}" in read_run(tmp_path / "run").curves.team for name in expected)
    tags = dict(scalars(last))
    assert all(tags[f"episode/{name.replace('/', '.')}"] == value for name, value in expected.items())
    console = Console(width=200, file=io.StringIO())
    console.print(frame(last, History(), width=200))
    assert all(name in console.file.getvalue() for name in expected)
    page = report([tmp_path / "run"], tmp_path / "page.html").path.read_text()
    assert "Measured by the world" in page and all(name in page for name in expected)


def test_worlds_as_arrays_have_a_method(tmp_path):
    train(Swarm, QUICK, Settings(steps=60, engine="serial", worlds_per_actor=3), run=tmp_path / "run")
    found = read_episodes(tmp_path / "run")
    assert set(found.metrics["speed"]) == {2.5} and set(found.metrics["number"]) == {0.0, 1.0, 2.0}
    assert all(line["metrics"]["number"] == line["world"] for line in found.lines)


def test_partners_do_not_hide_them(tmp_path):
    train(Fruits, {"ann": QUICK, "bob": "random"}, SERIAL, run=tmp_path / "run")
    assert read_episodes(tmp_path / "run").lines[0]["metrics"] == FRUITS


def test_without_a_run_directory_they_are_in_the_snapshots():
    seen = []
    settings = Settings(steps=60, updates_per_step=1.0, episodes_mb=0)
    train(partial(Walk), QUICK, settings, on_update=seen.append)
    assert seen[-1].metrics == WALK


class Talking(Fruits):
    """The same, with things in its infos that are not numbers."""

    def step(self, actions):
        *rest, infos = super().step(actions)
        infos["bob"] = {"metrics": {"note": "text", "fruits": 3.0}}
        infos["all"] = {"metrics": [1.0]}
        return *rest, infos


def test_metrics_that_are_not_numbers_are_named_once():
    seen = []
    with pytest.warns(UserWarning) as warned:
        train(Talking, QUICK, Settings(steps=60, engine="serial"), on_update=seen.append)
    assert seen[-1].metrics == {"ann/fruits": 2.0, "bob/fruits": 3.0}
    texts = [str(one.message) for one in warned]
    assert set(texts) == {
        "Talking (agent bob): info[\"metrics\"]['note'] must be a number, got str; it is left out",
        'Talking: info["metrics"] must be a dict of numbers by name, got list; it is left out',
    }
    assert len(texts) <= 4 < seen[-1].agents[0].episodes, "once for each copy of the world"


def test_metrics_of_worlds_are_numbers():
    class Wrong(Swarms):
        def metrics(self):
            return {"speed": ["fast"] * self.worlds}

    class Swarm(Walk):
        def vector(self, worlds):
            return Wrong(worlds)

    with pytest.raises(WorldError, match=r"Wrong: metrics\(\) must return numbers by name, got 'speed': str 'fast'"):
        train(Swarm, QUICK, Settings(steps=60, engine="serial"))


def test_metrics_that_do_not_fit_are_counted_and_shown():
    class Much(Walk):
        def step(self, action):
            *rest, _ = super().step(action)
            return *rest, {"metrics": {f"{'long' * 50}{i}": 1.0 for i in range(20)}}

    seen = []
    train(Much, QUICK, Settings(steps=60, engine="serial"), on_update=seen.append)
    last = seen[-1]
    each = 21 - len(last.metrics)  # with that of the reset
    assert last.metrics_lost == each * last.agents[0].episodes > 0
    words = f"{last.metrics_lost:,} metrics not logged"
    assert words in rows_gone(last)
    for width in (80, 200):
        console = Console(width=width, file=io.StringIO())
        console.print(frame(last, History(), width=width))
        assert words in console.file.getvalue()


def test_an_episode_does_not_begin_with_the_numbers_of_the_one_before():
    class Counting(Walk):
        number = 0

        def reset(self, *, seed=None, options=None):
            self.number += 1
            return super().reset(seed=seed)[0], {"metrics": {"number": self.number}}

    worlds = LoopedWorlds([as_world(Counting())], (False,))
    for number in (1, 2):
        worlds.reset([0], [1])
        while 0 not in worlds.over:
            worlds.turns()
            worlds.act([np.zeros(1, np.int64)])
        assert worlds.measured.pop(0)["number"] == number


def test_settings_that_change_and_the_loss_of_the_policy_are_shown():
    from motet.algorithms.td3 import TD3Config
    from motet.schedule import Linear
    from motet.worlds.catalogue import world_factory

    seen = []
    config = DQNConfig(hidden=(8,), batch_size=8, min_rows=16, epsilon=Linear(1.0, 0.0, steps=100), learning_rate=0.25)
    train(Walk, config, Settings(steps=60, engine="serial"), on_update=seen.append)
    shown = seen[-1].agents[0].metrics
    assert shown["learning_rate"] == 0.25 and 0.35 < shown["epsilon"] < 0.65
    td3 = TD3Config(hidden=(8,), batch_size=8, min_rows=16)
    train(world_factory("gym:Pendulum-v1"), td3, Settings(steps=60, engine="serial"), on_update=seen.append)
    shown = seen[-1].agents[0].metrics
    assert shown["policy_loss"] != 0 and {"noise", "learning_rate"} <= shown.keys()
    assert seen[-1].episodes_per_s >= 0
