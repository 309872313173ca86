"""Composed action spaces and masks from a user's environment to the learner, and back as actions.

The environments and policies are those of ``support.foreign_actions``, which do not know motet. Each of them raises if
an action is not what its mask allows.
"""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from support.foreign_actions import Console, Drone, FirstOpen, FirstOpenOfMany, Sampler, Switches, Warehouse

import motet
from motet import Partner, Settings, resume, train
from motet.algorithms import DQNConfig, IQNConfig, PPOConfig, TD3Config
from motet.errors import PolicyFailure, SettingError, WorldError
from motet.policy import PolicySpec
from motet.testing import check_world
from motet.training.league import League
from motet.training.roster import make_roster
from motet.world import as_world

WORLDS = {
    "multi-discrete, masks in the info": Warehouse,
    "multi-discrete, masks in the observation": partial(Warehouse, in_observation=True),
    "dict": Drone,
    "dict, masked": partial(Drone, masked=True),
    "bits": Switches,
    "bits, masked": partial(Switches, masked=True),
    "tuple": Console,
}
GOOD = {  # about nine tenths of the highest return
    "multi-discrete, masks in the info": 14.5,
    "dict, masked": 21,
    "bits": 7.2,
    "bits, masked": 6.3,
    "tuple": 7.2,
}
QUICK = PPOConfig(
    hidden=(32,), batch_size=8, length=16, epochs=6, minibatches=2, learning_rate=3e-3, gamma=0.0, gae_lambda=0.0
)
SMALL = PPOConfig(hidden=(8,), batch_size=2, length=8, minibatches=2, epochs=1)


def same(one, other):
    return all(np.array_equal(one.agents[name]["state"], other.agents[name]["state"]) for name in one.agents)


@pytest.mark.parametrize("name", WORLDS)
def test_foreign_worlds_keep_the_contract(name):
    check_world(WORLDS[name])


@pytest.mark.parametrize(("name", "good"), GOOD.items())
def test_ppo_learns_in_foreign_worlds(name, good):
    random = motet.evaluate(WORLDS[name], "random", episodes=20).scores()["random"].mean
    result = train(WORLDS[name], QUICK, Settings(steps=4000, worlds_per_actor=8, engine="serial"))
    assert min(result.returns.values()) > good > random + 2


@pytest.mark.parametrize("name", ["multi-discrete, masks in the info", "dict, masked", "bits, masked", "tuple"])
def test_lockstep_is_the_serial_run(name):
    def play(engine):
        more = {"slack": 0} if engine == "processes" else {}
        return train(WORLDS[name], SMALL, Settings(steps=300, engine=engine, worlds_per_actor=2, **more))

    serial = play("serial")
    assert min(serial.updates.values()) > 10
    assert same(serial, play("processes"))


class Saved(Drone):
    """A drone that can save its state."""

    def get_state(self):
        state = self.np_random.bit_generator.state
        return (state, self.t, self.wanted, self.closed, tuple(self.thrust.tolist()), tuple(self.dark.tolist()))

    def set_state(self, state):
        self.np_random = np.random.default_rng()
        self.np_random.bit_generator.state, self.t, self.wanted, self.closed, thrust, dark = state
        self.thrust, self.dark = np.array(thrust, np.float32), np.array(dark, np.int8)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    world = partial(Saved, turns=13, masked=True)
    check_world(world)
    settings = {"engine": "serial", "worlds_per_actor": 2, "keep_replay": True, "checkpoint_every": 250}
    whole = train(world, SMALL, Settings(steps=500, **settings), run=tmp_path / "whole")
    train(world, SMALL, Settings(steps=250, **settings), run=tmp_path / "half")
    rest = resume(tmp_path / "half", steps=250, world=world, algorithm=SMALL)
    assert whole.steps == rest.steps == 500
    assert same(whole, rest)


@pytest.mark.parametrize("name", ["multi-discrete, masks in the info", "dict, masked"])
def test_isolated_policies_play_as_in_this_process(name, tmp_path):
    world = WORLDS[name]
    settings = Settings(steps=200, engine="serial", evaluate_every=100, evaluate_episodes=2)
    train(world, SMALL, settings, run=tmp_path / "run")
    policies = [str(tmp_path / "run"), PolicySpec("support.foreign_actions:Sampler"), "random", "noop"]
    for policy in policies:
        results = [motet.evaluate(world, policy, episodes=3, isolate=isolate, trust=True) for isolate in (False, True)]
        assert not results[0].failures()
        assert all(not episode.failed for episode in results[0].episodes)
        assert results[0].deterministic() == results[1].deterministic()


def test_joint_policies_get_masks_by_agent():
    for isolate in (False, True):
        spec = PolicySpec("support.foreign_actions:Foreman", kind="joint")
        result = motet.evaluate(Warehouse, spec, episodes=2, isolate=isolate)
        assert not result.failures()
        assert not any(episode.failed for episode in result.episodes)


def test_an_answer_that_the_mask_forbids_is_a_failure():
    class Stubborn(FirstOpen):
        def act(self, observation, mask):
            return np.array([0, 3])

    result = motet.evaluate(Warehouse, {"loader": Stubborn, "picker": FirstOpen}, episodes=1)
    assert list(result.failures().values()) == [{"answer": 1}]
    (failure,) = result.episodes[0].failures
    assert "array([0, 3]), which the mask does not allow" in failure.detail


PARTNERS = {
    "built-in": "random",
    "none": "noop",
    "class": Partner(FirstOpen),
    "isolated": Partner("support.foreign_actions:FirstOpen,isolate=yes"),
    "batch": Partner(FirstOpenOfMany),
    "joint": Partner("class=support.foreign_actions:Foreman,kind=joint"),
}


@pytest.mark.parametrize("kind", PARTNERS)
def test_partners_of_each_kind_keep_to_masks(kind):
    settings = Settings(steps=64, engine="serial", worlds_per_actor=2, evaluate_every=32, evaluate_episodes=2)
    agents = {"loader": SMALL, "picker": PARTNERS[kind]}
    assert train(Warehouse, agents, settings).returns["picker"] > 0


def test_a_partner_that_ignores_the_mask_is_named():
    class Stubborn(FirstOpen):
        def act(self, observation, mask):
            return np.array([0, 3])

    with pytest.raises(PolicyFailure, match=r"Stubborn of picker: the action is .*, which the mask does not"):
        train(Warehouse, {"loader": SMALL, "picker": Partner(Stubborn)}, Settings(steps=64, engine="serial"))


def test_partners_act_in_worlds_with_dicts():
    settings = Settings(steps=64, engine="serial", worlds_per_actor=3)
    for partner in ("random", Partner(Sampler), Partner("support.foreign_actions:Sampler,isolate=yes")):
        result = train(Pair, {"first": SMALL, "second": partner}, settings)
        assert result.returns["second"] > 0


class Pair(Warehouse):
    """Two drones side by side."""

    def __init__(self, masked=True):
        self.possible_agents = ["first", "second"]
        self.drones = {agent: Drone(masked=masked) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self.drones[agent].observation_space

    def action_space(self, agent):
        return self.drones[agent].action_space

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        begun = {a: d.reset(seed=None if seed is None else seed + i) for i, (a, d) in enumerate(self.drones.items())}
        return {agent: pair[0] for agent, pair in begun.items()}, {agent: pair[1] for agent, pair in begun.items()}

    def step(self, actions):
        results = {agent: self.drones[agent].step(action) for agent, action in actions.items()}
        parts = tuple({agent: result[i] for agent, result in results.items()} for i in range(5))
        if any(parts[3].values()):
            self.agents = []
        return parts

    def render(self):
        return None


def open_shelves():
    return FirstOpen()


@pytest.mark.parametrize(("world", "anchors"), [(Warehouse, (f"{__name__}:open_shelves",)), (Pair, ())])
def test_self_play_with_masks(world, anchors):
    """Both sides act by one policy, so its questions and answers are joined and divided."""
    league = League(anchors=anchors, anchor_share=0.5 if anchors else 0.0, snapshot_every=64, review_every=64)
    settings = Settings(steps=400, engine="serial", worlds_per_actor=3, self_play=True, league=league)
    result = train(world, SMALL, settings)
    assert result.updates["player"] > 10


@pytest.mark.parametrize("config", [DQNConfig(), IQNConfig()])
def test_others_refuse_what_they_cannot_act_in(config):
    name = type(config).__name__.removesuffix("Config")
    for world, shown in ((Switches, r"MultiBinary\(4\)"), (Drone, "Dict"), (Console, "Tuple"), (Warehouse, "MultiD")):
        with pytest.raises(SettingError, match=f"{name} needs a Discrete action space, got {shown}.*; use ppo"):
            make_roster(world, config, Settings(steps=10))
    with pytest.raises(SettingError, match=r"must be a Box of floats with finite bounds, got Dict.*; use ppo"):
        make_roster(Drone, TD3Config(), Settings(steps=10))


def broken(mask, action_space=None):
    """A factory of drones whose mask is this one."""

    class Broken(Drone):
        def __init__(self):
            super().__init__(masked=True)
            self.action_space = action_space or self.action_space

        def info(self):
            return {"action_mask": mask}

        def step(self, action):
            self.t += 1
            self.draw()
            return self.observation(), 0.0, False, self.t >= self.turns, self.info()

    return Broken


BITS, MOVES = np.full(2, 2, np.int8), np.ones(3, np.int8)
TWO = spaces.MultiDiscrete([2, 3])


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (broken({"move": MOVES[:2], "thrust": None, "lamps": BITS}), r"action_mask\['move'\] must have one entry for"),
        (broken({"move": MOVES * 0, "thrust": None, "lamps": BITS}), r"action_mask\['move'\] must allow at least one"),
        (
            broken({"move": MOVES, "thrust": None, "lamps": BITS + 1}),
            r"action_mask\['lamps'\] must be an array of 0, 1",
        ),
        (broken({"move": MOVES, "thrust": MOVES, "lamps": BITS}), r"action_mask\['thrust'\] must be None"),
        (broken({"move": MOVES, "lamps": BITS}), r"action_mask must be a dict with a mask for each of \['move', 'th"),
        (
            broken((np.ones(2), np.ones(2)), TWO),
            r"action_mask\[1\] must have one entry for each of 3 actions, got shape",
        ),
        (
            broken((np.ones(2), np.array(["a", "b", "c"])), TWO),
            r"action_mask\[1\] must be an array of 0 and 1, got array",
        ),
        (broken(np.ones(6), TWO), r"action_mask must be a tuple of 2 masks, got an array of shape \[6\]"),
    ],
)
def test_wrong_masks_are_named(factory, message):
    """With the agent, the step and the seed, wherever such a world is used."""
    where = rf"^Broken \(agent agent_0, step 0, seed 0\): {message}.*; the action space is (Dict|MultiDiscrete)"
    with pytest.raises(WorldError, match=where):
        check_world(factory)
    world = as_world(factory())
    world.reset(0)
    with pytest.raises(WorldError, match=where):
        world.mask(0)


def test_films_show_an_episode(tmp_path):
    world = partial(Drone, masked=True)
    train(world, SMALL, Settings(steps=100, engine="serial"), run=tmp_path / "run", pictures=True)
    assert (tmp_path / "run/episode.gif").exists()
    result = motet.evaluate(world, str(tmp_path / "run"), episodes=1, film=(0,), trust=True)
    assert len(result.episodes[0].frames) > 1
