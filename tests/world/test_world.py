import random
import subprocess
import sys
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.test.example_envs import generated_agents_env_v0
from pettingzoo.utils.conversions import parallel_to_aec
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from motet.errors import SettingError, WorldError
from motet.testing import check_world
from motet.world import End, World, as_world, from_objects
from motet.worlds import Cleanup, MatrixGame, TreasureHunt


def play(world, choose, seed=0):
    """Whole episode: [(agent, reward, observation)] in turn order, and [(End, reward, final observation)]."""
    turns, ends = [], []
    world.reset(seed)
    while True:
        for end in world.ended():
            ends.append((end, world.reward(end.agent), world.observe(end.agent)))
        group = world.group()
        if not group:
            return turns, ends
        turns += [(agent, world.reward(agent), world.observe(agent)) for agent in group]
        world.act([choose(agent) for agent in group])


def altered(env, name, change):
    """``env`` whose method gives ``change(what it gave)``."""
    method = getattr(env, name)
    setattr(env, name, lambda *args, **kwargs: change(env, method(*args, **kwargs)))
    return env


# Environments that do what a script says. Their log is the ground truth: turns, earnings, ends, without any summing.


class Scripted(AECEnv):
    """In turn. An entry of the script is a step: what everyone earns, who dies of it, who is born."""

    def __init__(self, script, agents=3, at_first=2, dead_first=True):
        self.possible_agents = [f"a{i}" for i in range(agents)]
        self.script, self.at_first, self.dead_first = script, at_first, dead_first

    def observation_space(self, agent):
        return Box(-1, 1000, (2,), np.float32)

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.log, self.t, self.resume = [], [], 0, None
        self.terminations, self.truncations, self.infos = {}, {}, {}
        self.rewards, self._cumulative_rewards = {}, {}
        self.unborn = self.possible_agents[:]
        for _ in range(self.at_first):
            self.bear()
        self.agent_selection = self.agents[0]

    def bear(self):
        name = self.unborn.pop(0)
        self.agents.append(name)
        for table, value in (
            (self.terminations, False),
            (self.truncations, False),
            (self.infos, {}),
            (self.rewards, 0.0),
            (self._cumulative_rewards, 0.0),
        ):
            table[name] = value

    def dead(self):
        return [name for name in self.agents if self.terminations[name] or self.truncations[name]]

    def following(self, name):
        start = self.possible_agents.index(name)
        cycle = self.possible_agents[start + 1 :] + self.possible_agents[: start + 1]
        return next((other for other in cycle if other in self.agents), None)

    def step(self, action):
        name = self.agent_selection
        if name in self.dead():
            assert action is None
            self.log.append(("end", name, self.terminations[name], self.truncations[name]))
            following = self.following(name)
            self.agents.remove(name)
            for table in (self.terminations, self.truncations, self.infos, self.rewards, self._cumulative_rewards):
                del table[name]
            if self.dead_first:
                left = self.dead()
                following = left[0] if left else self.resume
                if following not in self.agents:
                    following = self.following(following)
            self.agent_selection = following
            return
        assert action is not None
        self.log.append(("turn", name))
        self._cumulative_rewards[name] = 0.0
        self._clear_rewards()
        earnings, deaths, births = self.script[self.t]
        self.t += 1
        for who in self.agents:
            self.rewards[who] = earnings[self.possible_agents.index(who)]
            self.log.append(("earn", who, self.rewards[who]))
        self._accumulate_rewards()
        for who, truncated in deaths:
            if (name_of := self.possible_agents[who]) in self.agents:
                (self.truncations if truncated else self.terminations)[name_of] = True
        for _ in range(min(births, len(self.unborn))):
            self.bear()
        if self.t == len(self.script):
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.resume = self.following(name)
        if self.dead_first and self.dead():
            self.agent_selection = self.dead()[0]

    def observe(self, agent):
        return np.array([self.possible_agents.index(agent), self.t], np.float32)


def told(log):
    """A naive model of the contract: an agent's earnings summed between its turns and up to its end."""
    sums, turns, ends = {}, [], []
    for kind, name, *rest in log:
        agent = int(name[1:])
        if kind == "earn":
            sums[agent] = sums.get(agent, 0.0) + rest[0]
        elif kind == "turn":
            turns.append((agent, sums.pop(agent, 0.0)))
        else:
            ends.append((End(agent, *rest), sums.pop(agent, 0.0)))
    return turns, ends


def scripts(agents):
    earning = st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=agents, max_size=agents)
    deaths = st.lists(st.tuples(st.integers(0, agents - 1), st.booleans()), max_size=1)
    return st.lists(st.tuples(earning, deaths, st.integers(0, 1)), min_size=1, max_size=20)


@settings(max_examples=300, deadline=None)
@given(script=scripts(4), at_first=st.integers(1, 4), dead_first=st.booleans())
def test_in_turn_equals_a_naive_model(script, at_first, dead_first):
    env = Scripted(script, 4, at_first, dead_first)
    turns, ends = play(as_world(env), lambda agent: np.int64(1))
    expected_turns, expected_ends = told(env.log)
    assert [turn[:2] for turn in turns] == expected_turns
    assert [end[:2] for end in ends] == expected_ends
    assert all(seen[0] == agent for agent, _, seen in turns)
    assert all(seen[0] == end.agent for end, _, seen in ends)
    assert not env.agents


def test_rewards_between_the_last_action_and_the_end_are_counted():
    # a0 acts and earns 1; a1's step gives it 2 more and kills it; it is met only when its turn comes.
    script = [([1, 0], [], 0), ([2, 5], [(0, False)], 0), ([0, 7], [], 0)]
    turns, ends = play(as_world(Scripted(script, 2, 2, dead_first=False)), lambda agent: 0)
    assert [turn[:2] for turn in turns] == [(0, 0.0), (1, 0.0), (1, 5.0)]
    assert [end[:2] for end in ends] == [(End(0, True, False), 3.0), (End(1, False, True), 7.0)]


def test_a_reward_can_be_asked_for_at_any_time_and_none_is_lost():
    script = [([1, 2], [], 0), ([4, 8], [], 0), ([16, 32], [], 0), ([0, 0], [], 0)]
    world = as_world(Scripted(script, 2, 2))
    world.reset()
    world.act([0])
    assert world.reward(0) == 1 and world.reward(0) == 0
    world.act([0])  # a1 acts, its 2 have not been asked for
    assert world.reward(0) == 4 and world.reward(1) == 10
    assert world.reward(0) == 0 and world.reward(1) == 0
    world.act([0])
    assert world.reward(0) == 16
    world.act([0])
    assert list(world.ended()) == [End(0, False, True), End(1, False, True)]
    assert world.reward(0) == 0 and world.reward(1) == 32  # what was asked for before the end is not given again
    party = as_world(Party())
    party.reset()
    party.act([0, 1])
    party.act([0, 1])
    assert party.reward(0) == 10 + 20 and party.reward(1) == 11 + 21


@pytest.mark.parametrize("dead_first", [True, False])
def test_in_turn_with_deaths_and_births_keeps_the_contract(dead_first):
    rng = np.random.default_rng(0)
    script = [(rng.integers(-3, 4, 5).tolist(), [(3, True)] if t == 9 else [], int(t % 4 == 2)) for t in range(30)]
    script[5] = (script[5][0], [(0, False)], 0)
    check_world(lambda: Scripted(script, 5, 2, dead_first))
    check_world(lambda: OrderEnforcingWrapper(Scripted(script, 5, 2, dead_first)))


class Party(ParallelEnv):
    """At once, with different spaces: guest i sees i + 1 numbers and has i + 2 actions from i on; a table by step."""

    metadata: ClassVar = {"name": "party"}
    render_mode = None
    arrives, leaves = (0, 0, 2), ((4, False), (6, True), (6, True))

    def __init__(self, masks=None):
        self.possible_agents = ["ann", "bob", "cat"]
        self.masks = masks
        self.buffers = [np.zeros(i + 1, np.float32) for i in range(3)]

    def observation_space(self, agent):
        i = self.possible_agents.index(agent)
        inside = Box(-1, 100, (i + 1,), np.float32)
        mask = Box(0, 1, (i + 2,), np.int8)
        return Dict(observation=inside, action_mask=mask) if self.masks == "observation" else inside

    def action_space(self, agent):
        i = self.possible_agents.index(agent)
        return Discrete(i + 2, start=i)

    def allowed(self, i):
        mask = np.ones(i + 2, np.int8)
        mask[self.t % (i + 2)] = 0
        return mask

    def shown(self, names):
        seen, infos = {}, {}
        for name in names:
            i = self.possible_agents.index(name)
            self.buffers[i][:] = self.t  # the same memory again and again
            seen[name], infos[name] = self.buffers[i], {}
            if self.masks == "observation":
                seen[name] = {"observation": self.buffers[i], "action_mask": self.allowed(i)}
            if self.masks == "info":
                infos[name] = {"action_mask": self.allowed(i)}
        return seen, infos

    def reset(self, seed=None, options=None):
        self.t, self.paid = 0, [0.0] * 3
        self.agents = [n for n, a in zip(self.possible_agents, self.arrives, strict=True) if a == 0]
        return self.shown(self.agents)

    def step(self, actions):
        assert list(actions) == self.agents
        for name, action in actions.items():
            i = self.possible_agents.index(name)
            assert isinstance(action, int) and i <= action < 2 * i + 2
            assert self.masks is None or self.allowed(i)[action - i]
        self.t += 1
        here = self.agents
        rewards = {name: 10.0 * self.t + self.possible_agents.index(name) for name in here}
        for name, reward in rewards.items():
            self.paid[self.possible_agents.index(name)] += reward
        flags = [{}, {}]
        for name in here:
            when, truncated = self.leaves[self.possible_agents.index(name)]
            flags[0][name] = self.t == when and not truncated
            flags[1][name] = self.t == when and truncated
        born = [n for n, a in zip(self.possible_agents, self.arrives, strict=True) if a == self.t]
        seen, infos = self.shown(here + born)
        self.agents = [n for n in here if not (flags[0][n] or flags[1][n])] + born
        return seen, rewards, *flags, infos


def test_at_once_with_an_early_death_and_a_late_birth():
    env = Party()
    world = as_world(env)
    assert world.agents == ("ann", "bob", "cat")
    assert [space.shape for space in world.observation_spaces] == [(1,), (2,), (3,)]
    assert [int(space.start) for space in world.action_spaces] == [0, 1, 2]
    turns, ends = play(world, lambda agent: np.int64(agent))
    assert [agent for agent, _, _ in turns] == [0, 1] * 2 + [0, 1, 2] * 2 + [1, 2] * 2
    assert [end for end, _, _ in ends] == [End(0, True, False), End(1, False, True), End(2, False, True)]
    assert [seen.tolist() for _, _, seen in ends] == [[4], [6, 6], [6, 6, 6]]
    assert ends[0][1] == 40 and ends[2][1] == 62
    totals = [sum(r for a, r, _ in turns if a == i) + sum(r for e, r, _ in ends if e.agent == i) for i in range(3)]
    assert totals == env.paid
    world.reset()
    world.act([0, 1])
    early = world.observe(0)
    world.act([0, 1])
    assert early.tolist() == [1]  # a copy, though the environment writes to the same memory


@pytest.mark.parametrize("masks", [None, "observation", "info"])
@pytest.mark.parametrize("shown", [True, False])
def test_the_last_observation_of_an_agent_stays_unchanged_while_others_continue(masks, shown):
    def show_the_dead(env, result):
        seen, infos = env.shown(["ann"])  # writes to the memory that its last observation was in
        if shown:
            result[0].update(seen)
            result[-1].update(infos)
        return result

    world = as_world(altered(Party(masks), "step", show_the_dead))
    world.reset()
    while 0 in world.group():
        world.act([agent + (0 if masks is None else int(world.mask(agent).argmax())) for agent in world.group()])
    last = world.mask(0)
    for step in (5, 6):
        world.act([agent + (0 if masks is None else int(world.mask(agent).argmax())) for agent in world.group()])
        assert world.observe(0).tolist() == [4] and world.observe(1).tolist() == [step, step]
        assert np.array_equal(world.mask(0), last)
    assert masks is None or last.tolist() == [False, True]


@pytest.mark.parametrize("masks", [None, "observation", "info"])
def test_at_once_keeps_the_contract(masks):
    check_world(lambda: Party(masks))


@pytest.mark.parametrize("masks", ["observation", "info"])
def test_a_mask_is_separated_from_the_observation(masks):
    world = as_world(Party(masks))
    assert world.observation_spaces[1] == Box(-1, 100, (2,), np.float32)
    world.reset()
    mask = world.mask(1)
    assert mask.dtype == bool and mask.tolist() == [False, True, True]
    assert world.observe(1).tolist() == [0, 0]
    while world.group():
        masks_now = [world.mask(agent) for agent in world.group()]
        world.act([agent + int(mask.argmax()) for agent, mask in zip(world.group(), masks_now, strict=True)])
    assert world.mask(1).tolist() == [False, True, True]  # at its end, after 6 steps
    assert world.mask(0).tolist() == [False, True]  # after 4


class Masked(Scripted):
    """In turn, a mask inside the observation or beside it; looks are counted."""

    def __init__(self, inside):
        super().__init__([([0.0], [], 0)] * 4, 1, 1)
        self.inside, self.looks = inside, 0

    def observation_space(self, agent):
        parts = {"observation": Box(0, 9, (), np.int64), "other": Discrete(9), "action_mask": MultiBinary(3)}
        return Dict(parts) if self.inside else Discrete(9)

    def observe(self, agent):
        self.looks += 1
        mask = np.array([self.t % 2, 1, 0])
        self.infos[agent] = {} if self.inside else {"action_mask": mask}
        return {"observation": self.t, "other": np.int32(2), "action_mask": mask} if self.inside else self.t


def test_in_turn_masks():
    world = as_world(Masked(True))
    assert set(world.observation_spaces[0].spaces) == {"observation", "other"}
    world.reset()
    world.act([1])
    before = world._env.looks
    seen = world.observe(0)
    assert world.mask(0).tolist() == [True, True, False]
    assert world._env.looks == before + 1  # one look for both
    world.act([1])
    assert world.observe(0)["observation"] == 2 and world.mask(0).tolist() == [False, True, False]
    assert {key: (value.dtype, value.tolist()) for key, value in seen.items()} == {
        "observation": (np.int64, 1),
        "other": (np.int64, 2),
    }
    beside = as_world(Masked(False))
    beside.reset()
    assert beside.observe(0).tolist() == 0 and beside.mask(0).tolist() == [False, True, False]
    check_world(lambda: Masked(True))


# Shipped worlds, Gymnasium


@pytest.mark.parametrize("agents", [1, 2, 4])
def test_treasure_hunt_pays_what_its_own_loop_pays(agents):
    actions = np.random.default_rng(agents).integers(0, 4, 100 * agents)
    bare = TreasureHunt(agents=agents, spawn=0.05)
    bare.reset(seed=5)
    paid = [0.0] * agents
    for action in actions:
        index = bare.mover
        paid[index] += bare.play(action)
    chosen = iter(actions)
    turns, ends = play(as_world(TreasureHunt(agents=agents, spawn=0.05)), lambda agent: next(chosen), seed=5)
    got = [0.0] * agents
    for agent, reward, _ in turns:
        got[agent] += reward
    for end, reward, seen in ends:
        got[end.agent] += reward
        assert np.array_equal(seen, bare.look(end.agent)) and (end.terminated, end.truncated) == (False, True)
    assert got == paid and any(paid)
    assert len(turns) == 100 * agents and [end.agent for end, _, _ in ends] == list(range(agents))


@pytest.mark.parametrize(
    "factory",
    [
        lambda: TreasureHunt(agents=3, turns=20, spawn=0.1),
        lambda: Cleanup(turns=30),
        lambda: MatrixGame("stag_hunt", turns=12),
        lambda: parallel_to_aec(MatrixGame("chicken", turns=12)),
        lambda: gymnasium.make("CartPole-v1"),
        lambda: gymnasium.make("Pendulum-v1"),
    ],
)
def test_known_environments_keep_the_contract(factory):
    check_world(factory)


def test_shipped_worlds_can_save_and_a_wrapper_hides_it():
    assert all(as_world(env).can_save for env in (TreasureHunt(), Cleanup(), MatrixGame()))
    assert not as_world(OrderEnforcingWrapper(TreasureHunt())).can_save
    with pytest.raises(SettingError, match="cannot save its state"):
        as_world(gymnasium.make("CartPole-v1")).get_state()


@pytest.mark.parametrize("env", [TreasureHunt(agents=2, turns=9, spawn=0.3), MatrixGame(turns=9)])
def test_a_snapshot_is_plain_and_continues_in_a_new_world(env):
    import ast

    world, again = as_world(env), as_world(type(env)(turns=9, **({"spawn": 0.3} if "spawn" in vars(env) else {})))
    world.reset(seed=2)
    for _ in range(5):
        world.act([1] * len(world.group()))  # nobody asks for rewards: they are in the snapshot
    again.set_state(ast.literal_eval(repr(world.get_state())))
    while world.group():
        assert world.group() == again.group()
        for agent in world.group():
            assert world.reward(agent) == again.reward(agent)
            assert np.array_equal(world.observe(agent), again.observe(agent))
        for one in (world, again):
            one.act([0] * len(one.group()))
    assert list(world.ended()) == list(again.ended()) != [] and not again.group()


def test_cart_pole_terminates_and_pendulum_is_truncated():
    turns, ends = play(as_world(gymnasium.make("CartPole-v1")), lambda agent: 0)
    assert ends[0][0] == End(0, True, False) and len(turns) < 20
    assert sum(reward for _, reward, _ in turns) + ends[0][1] == len(turns)
    assert ends[0][2].dtype == np.float32
    turns, ends = play(as_world(gymnasium.make("Pendulum-v1")), lambda agent: np.zeros(1, np.float32))
    assert ends[0][0] == End(0, False, True) and len(turns) == 200


def test_pictures():
    world = as_world(gymnasium.make("CartPole-v1"))
    world.reset()
    assert world.render() is None
    hunt = as_world(TreasureHunt(render_mode="rgb_array"))
    hunt.reset()
    assert hunt.render().shape == (336, 336, 3)
    hunt.close()


# Values


class Echo(gymnasium.Env):
    """Shows what it was given, through a given space."""

    action_space = Discrete(3, start=-1)
    render_mode = None

    def __init__(self, space, shown=None, action_space=None, **behaviour):
        self.observation_space, self.shown, self.behaviour = space, shown, behaviour
        self.action_space = action_space or Discrete(3, start=-1)
        self.got = []

    def reset(self, seed=None, options=None):
        if "reset" in self.behaviour:
            raise self.behaviour["reset"]
        return self.shown, {}

    def step(self, action):
        self.got.append(action)
        if "step" in self.behaviour:
            raise self.behaviour["step"]
        return self.shown, self.behaviour.get("reward", 0.0), False, False, self.behaviour.get("info", {})


def echo(space, shown):
    world = as_world(Echo(space, shown))
    world.reset()
    return world.observe(0)


def test_observations_are_cast_where_nothing_is_lost():
    assert echo(Box(0, 1, (2,), np.float32), np.array([0.1, 0.2])).dtype == np.float32
    assert echo(Box(0, 9, (2,), np.uint8), [1, 2]).tolist() == [1, 2]
    assert echo(Box(0, 9, (2,), np.uint8), np.array([1.0, 2.0])).dtype == np.uint8
    assert echo(Discrete(4), 3).dtype == np.int64
    fortran = echo(Box(0, 9, (2, 3), np.float32), np.asfortranarray(np.ones((2, 3), np.float32)))
    assert fortran.flags.c_contiguous and fortran.flags.owndata
    nest = echo(
        Dict(a=Tuple((Discrete(2), MultiDiscrete([2, 3]))), b=Box(0, 1, ())),
        {"b": 0.5, "a": (1, np.array([0, 2], np.int32))},
    )
    assert nest["a"][0].dtype == np.int64 and nest["a"][1].dtype == np.int64 and nest["b"].shape == ()


@pytest.mark.parametrize(
    ("space", "shown", "message"),
    [
        (Box(0, 1, (2,), np.float32), np.zeros(3, np.float32), r"shape \[3\]; expected \[2\]"),
        (Box(0, 1, (2,), np.float32), None, "the agent has no observation"),
        (Box(0, 1, (2,), np.float32), {}, "dict {}; expected an array float32"),
        (Box(0, 1, (2,), np.float32), "no", "expected an array"),
        (Box(0, 1, (2,), np.float32), [[1], [1, 2]], "expected an array"),
        (Box(0, 1, (2,), np.float32), np.array([1e300, 0]), "values that float32 cannot"),
        (Box(0, 9, (1,), np.uint8), np.array([300]), "values that uint8 cannot"),
        (Box(0, 9, (1,), np.uint8), np.array([0.5]), "values that uint8 cannot"),
        (Box(0, 9, (1,), np.int32), np.array([np.nan]), "values that int32 cannot"),
        (Dict(a=Discrete(2)), {"b": 1}, r"\['b'\]; expected a dict with \['a'\]"),
        (Dict(a=Box(0, 1, (1,))), {"a": [1, 2]}, r"observation\['a'\] has shape"),
        (Tuple((Discrete(2),)), (1, 1), "a tuple of 1"),
    ],
)
def test_an_observation_outside_of_its_space_is_reported(space, shown, message):
    with pytest.raises(WorldError, match=message) as told:
        echo(space, shown)
    assert "Echo (agent agent_0, step 0, no seed, reset 1 after seed None): " in str(told.value)


@pytest.mark.parametrize("action", [3, -2, 1.5, np.float32(0), None, np.array([0, 1]), "x", np.nan])
def test_an_action_out_of_range_is_refused_before_it_reaches_the_world(action):
    env = Echo(Discrete(2), 0)
    world = as_world(env)
    world.reset(seed=4)
    with pytest.raises(WorldError, match=r"Echo \(agent agent_0, step 0, seed 4\): the action is .*; expected"):
        world.act([action])
    assert env.got == []
    for good in (np.int64(-1), np.array(1), np.int32(0), 1):
        world.act([good])
    assert env.got == [-1, 1, 0, 1] and all(type(got) is int for got in env.got)
    hunt = as_world(TreasureHunt())
    hunt.reset(seed=4)
    with pytest.raises(WorldError, match=r"TreasureHunt \(agent agent_0, step 0, seed 4\): the action is"):
        hunt.act([-5 if action in (3, -2) else action] if not isinstance(action, np.ndarray) else [9])


def test_actions_that_are_arrays():
    env = Echo(Discrete(2), 0, action_space=Box(-1, 1, (2,), np.float32))
    world = as_world(env)
    world.reset()
    world.act([np.array([0.5, -0.5])])
    assert env.got[0].dtype == np.float32
    for bad in (np.array([2, 0]), np.array([np.nan, 0]), np.zeros(3), 1.0):
        with pytest.raises(WorldError, match="the action"):
            world.act([bad])


@pytest.mark.parametrize("actions", [[], [0, 0]])
def test_one_action_for_each_of_the_group(actions):
    for env in (Echo(Discrete(2), 0), TreasureHunt()):
        world = as_world(env)
        world.reset()
        with pytest.raises(WorldError, match=f"got {len(actions)} actions; expected 1"):
            world.act(actions)


@pytest.mark.parametrize("env", [TreasureHunt(), MatrixGame(turns=1)])
def test_acting_without_an_episode_is_an_error(env):
    with pytest.raises(WorldError, match="no episode is running"):
        as_world(env).act([0])


# A user's bugs


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -np.inf])
def test_a_reward_must_be_finite(reward):
    world = as_world(Echo(Discrete(2), 0, reward=reward))
    world.reset(seed=3)
    with pytest.raises(WorldError, match=r"agent_0, step 1, seed 3, action int 1\): the reward is"):
        world.act([1])
    nothing = as_world(Echo(Discrete(2), 0, reward=None))
    nothing.reset()
    with pytest.raises(WorldError, match="the reward is None; expected a finite number"):
        nothing.act([1])
    hunt = as_world(Scripted([([reward], [], 0)] * 3, 1, 1))
    hunt.reset(seed=3)
    hunt.act([1])
    with pytest.raises(WorldError, match=r"agent a0, step 1, seed 3\): the reward is"):
        hunt.reward(0)


def test_an_exception_of_the_world_is_reported_with_agent_step_seed_and_action():
    cause = KeyError("mine")
    world = as_world(Echo(Discrete(2), 0, step=cause))
    world.reset(seed=7)
    world.reset()
    with pytest.raises(WorldError) as told:
        world.act([1])
    assert told.value.__cause__ is cause
    assert str(told.value) == (
        "Echo (agent agent_0, step 0, no seed, reset 1 after seed 7, action int 1): step() raised KeyError: 'mine'"
    )
    broken = as_world(Echo(Discrete(2), 0, reset=cause))
    with pytest.raises(WorldError, match=r"Echo \(step 0, seed 9\): reset\(\) raised KeyError") as told:
        broken.reset(seed=9)
    assert told.value.__cause__ is cause

    turn = Scripted([([0, 0], [], 0)] * 3, 2, 2)
    world = as_world(turn)
    world.reset(seed=1)
    world.act([0])
    turn.script = []
    with pytest.raises(WorldError, match=r"agent a1, step 1, seed 1, action int 2\): step\(\) raised IndexError"):
        world.act([2])
    turn.observe = lambda agent: 1 / 0
    with pytest.raises(WorldError, match=r"observe\(\) raised ZeroDivisionError"):
        world.observe(1)

    party = Party()
    world = as_world(party)
    world.reset(seed=1)
    party.step = lambda actions: 1 / 0
    with pytest.raises(
        WorldError, match=r"Party \(step 0, seed 1, action dict {'ann': 0, 'bob': 1}\): step\(\) raised"
    ):
        world.act([0, 1])


def forget(env, result):
    env.agents = env.agents[1:]
    return result


def stranger(env, result):
    result[1]["dan"] = 1.0
    return result


def blind(env, result):
    if result[2].get("ann"):
        del result[0]["ann"]
    return result


def undead(env, result):
    if env.t == 5:
        env.agents = [*env.agents, "ann"]
    return result


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (forget, "agent ann.*gone from agents without a termination or truncation"),
        (stranger, "unknown agent 'dan'"),
        (blind, "agent ann.*ended without an observation"),
        (undead, "agent ann.*act again after its episode ended"),
        (lambda env, result: result[:4], "step.. returned tuple .*; expected observations, rewards"),
    ],
)
def test_parallel_environment_that_breaks_its_contract_is_reported(change, message):
    with pytest.raises(WorldError, match=message):
        play(as_world(altered(Party(), "step", change)), lambda agent: agent)


def gone(env, result):
    env.agents = []


def lost(env, result):
    env.agent_selection = "zoe"


def stays(env, result):
    if env.log[-1][0] == "end":
        env.agents.append(env.log[-1][1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (gone, "agent a0.*gone from agents without a termination or truncation"),
        (lost, "unknown agent 'zoe'"),
        (stays, "still in agents after its step"),
    ],
)
def test_aec_environment_that_breaks_its_contract_is_reported(change, message):
    env = Scripted([([0, 0], [], 0)] * 3, 2, 2)
    with pytest.raises(WorldError, match=message):
        play(as_world(altered(env, "step", change)), lambda agent: 0)


def test_old_gym_environments_are_refused():
    env = Echo(Discrete(2), 0)
    env.reset = lambda seed=None: 0
    with pytest.raises(WorldError, match=r"reset\(\) returned int 0; expected observations and infos"):
        as_world(env).reset()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            TreasureHunt,
            r"world must be a PettingZoo .*, got the class TreasureHunt; make an object of it: TreasureHunt\(...\)",
        ),
        (lambda: 1, "call it first"),
        (42, "world must be a PettingZoo .*, got 42 of type int"),
        (None, "world must be a PettingZoo .*, got None of type NoneType"),
        (generated_agents_env_v0.raw_env(), "possible_agents must name all agents .*, got a raw_env without"),
        (Echo(Text(5), "a"), r"the space of the observation must be Box, .*, got Text"),
        (Echo(Discrete(2), 0, action_space=Text(4)), r"the space of the action must be Box, .*, got Text"),
    ],
)
def test_objects_that_are_not_worlds_are_refused(given, message):
    with pytest.raises(SettingError, match=message):
        as_world(given)


def test_a_vector_environment_gets_a_hint():
    with pytest.raises(SettingError, match="vector environment"):
        as_world(gymnasium.make_vec("CartPole-v1", 2))


def test_a_world_is_returned_unchanged_and_an_incomplete_one_is_reported():
    class Mine(World):
        agents, observation_spaces, action_spaces = ("me",), (Discrete(2),), (Discrete(2),)

        def reset(self, seed=None): ...
        def group(self): ...
        def observe(self, agent): ...
        def act(self, actions): ...
        def reward(self, agent): ...
        def ended(self): ...

    world = Mine()
    assert as_world(world) is world and not world.can_save and world.mask(0) is None and world.render() is None

    class Half:
        group = act = ended = reset = lambda self: None

    with pytest.raises(SettingError, match=r"world must have agents, observation_spaces, .*, got a Half without"):
        as_world(Half())


# Object gridworlds


class Entity:
    has_transitions = False


class Empty(Entity):
    has_transitions = True

    def __init__(self, at):
        self.at = at

    def transition(self, world):
        if random.random() < world.spawn:
            world.map[self.at] = Gem()


class Gem(Entity):
    pass


class Ghost(Entity):
    """Moves on by one tile a turn, in the direction in which a map is walked."""

    has_transitions = True

    def __init__(self):
        self.moves, self.at = 0, None

    def transition(self, world):
        self.moves += 1
        if self.at is not None and self.at[1] + 1 < world.map.shape[1]:
            there = (self.at[0], self.at[1] + 1)
            if isinstance(world.map[there], Empty):
                world.map[self.at], world.map[there] = Empty(self.at), self
                self.at = there


class Walker(Entity):
    has_transitions = True  # their loops leave agents out by type: a transition is what it lacks

    def __init__(self, actions=4):
        self.action_spec = type("Spec", (), {"n_actions": actions})()

    def pov(self, world):
        row, column = self.at
        window = np.pad([[isinstance(t, Gem) for t in line] for line in world.map], 1)[
            row : row + 3, column : column + 3
        ]
        return np.concatenate([window.ravel(), [row, column]]).astype(np.float64)

    def act(self, world, action):
        row, column = self.at
        step = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
        there = ((row + step[0]) % world.map.shape[0], (column + step[1]) % world.map.shape[1])
        met = world.map[there]
        if isinstance(met, Walker):
            return -1
        world.map[self.at], world.map[there], self.at = Empty(self.at), self, there
        self.found += isinstance(met, Gem)
        return 10 * isinstance(met, Gem)

    def is_done(self, world):
        return self.found == 3


class Meadow:
    spawn = 0.1

    def __init__(self):
        self.map = np.empty((4, 5), object)


class Field:
    """The user's environment, with the loop of its kind."""

    def __init__(self, agents=2):
        self.world, self.agents, self.turn = Meadow(), [Walker() for _ in range(agents)], 0

    def reset(self):
        self.turn = 0
        for at in np.ndindex(self.world.map.shape):
            self.world.map[at] = Empty(at)
        spots = random.sample(list(np.ndindex(self.world.map.shape)), len(self.agents))
        for agent, at in zip(self.agents, spots, strict=True):
            agent.at, agent.found = at, 0
            self.world.map[at] = agent

    def play_turn(self, choose, log):
        self.turn += 1
        for _, entity in np.ndenumerate(self.world.map):
            if entity.has_transitions and not isinstance(entity, Walker):
                entity.transition(self.world)
        for index, agent in enumerate(self.agents):
            if agent.is_done(self.world):
                continue
            log.append((index, agent.pov(self.world).tolist()))
            log.append((index, agent.act(self.world, choose())))


def test_an_object_gridworld_plays_as_its_own_loop_does():
    field = Field()
    field.reset()
    random.seed(3)
    field.reset()
    actions = random.Random(0).choices(range(4), k=400)
    log, chosen = [], iter(actions)
    while field.turn < 12 and not all(agent.is_done(field.world) for agent in field.agents):
        field.play_turn(lambda: next(chosen), log)

    world = from_objects(Field(), turns=12)
    assert world.observation_spaces[0] == Box(-np.inf, np.inf, (11,), np.float32)
    assert world.action_spaces == (Discrete(4), Discrete(4))
    world.reset(seed=3)
    mine, chosen = [], iter(actions)
    while world.group():
        (agent,) = world.group()
        world.reward(agent)
        mine.append((agent, world.observe(agent).tolist()))
        world.act([next(chosen)])
        mine.append((agent, world.reward(agent)))
    assert mine == log
    assert {end.agent for end in world.ended()} == {0, 1}
    assert any(reward == 10 for _, reward in mine)


def test_object_gridworlds_keep_the_contract():
    check_world(lambda: from_objects(Field(3), turns=20))
    check_world(lambda: Field(1), limit=5000)  # until it is done


def test_an_agent_that_is_done_terminates_and_the_others_are_truncated():
    field = Field()
    world = from_objects(field, turns=3)
    world.reset(seed=0)
    field.agents[0].found = 3
    world.act([0])
    assert list(world.ended()) == [End(0, True, False)]
    assert world.observe(0)[-2:].tolist() == list(field.agents[0].at)
    for _ in range(3):
        assert world.group() == (1,)
        world.act([0])
    assert list(world.ended()) == [End(1, False, True)] and world.group() == ()
    assert field.turn == 3


def test_all_may_be_done_in_one_turn():
    field = Field()
    world = from_objects(field, turns=3)
    world.reset(seed=0)
    for agent in field.agents:
        agent.found = 3
    world.act([0])
    world.act([0])
    assert list(world.ended()) == [End(0, True, False), End(1, True, False)] and world.group() == ()


def test_an_entity_that_moves_with_the_walk_has_one_transition_a_turn():
    field = Field(1)
    world = from_objects(field, turns=2)
    world.reset(seed=0)
    ghost, at = Ghost(), next(at for at in np.ndindex(4, 4) if isinstance(field.world.map[at], Empty))
    ghost.at, field.world.map[at] = at, ghost
    world.act([0])
    assert ghost.moves <= 1


@pytest.mark.parametrize("kind", ["entities", "method", "dict", "lists", "iterable"])
def test_where_entities_are_found(kind):
    class Place:
        def __init__(self):
            self.ghost = Ghost()
            things = [Gem(), self.ghost, None]
            if kind == "entities":
                self.entities = things
            elif kind == "method":
                self.entities = lambda: things
            elif kind == "dict":
                self.entities = dict(enumerate(things))
            elif kind == "lists":
                self.map = [[things], [[]]]
            self.things = things

    if kind == "iterable":
        Place.__iter__ = lambda self: iter([(self.things,)])

    class Agent:
        def pov(self, world):
            return [1.0]

        def act(self, world, action):
            return 1

        def is_done(self, world):
            return False

    class Environment:
        agents = [Agent()]  # noqa: RUF012

        def __init__(self):
            self.world = Place()

        def reset(self, seed=None):
            self.seed = seed

    environment = Environment()
    world = from_objects(environment, actions=2, turns=4)
    world.reset(seed=11)
    assert environment.seed == 11
    while world.group():
        world.act([1])
    assert environment.world.ghost.moves == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: from_objects(object()),
            r"an environment must have reset\(\), agents and world, got a object without reset",
        ),
        (
            lambda: from_objects(Field(), actions=[4]),
            "actions must be one value for all, or one for each of 2 agents, got 1",
        ),
        (lambda: from_objects(Field(), actions=0), "actions must be an int >= 1, or a space, got 0"),
        (lambda: from_objects(Field(), actions="four"), "actions must be an int >= 1, or a space, got 'four'"),
        (
            lambda: from_objects(Field(), observation=11),
            "observation must be a space, or None to take the shape of the first pov, got 11",
        ),
        (lambda: from_objects(Field(), turns=0), "turns must be an int >= 1, or math.inf for no limit, got 0"),
    ],
)
def test_bad_settings_of_an_object_gridworld_are_named(make, message):
    with pytest.raises(SettingError, match=message):
        make()


def test_bugs_in_an_object_gridworld_are_reported():
    field = Field()
    world = from_objects(field, actions=(4, Discrete(4)), observation=Box(0, 9, (11,), np.float32), turns=5)
    world.reset(seed=6)
    field.agents[0].act = lambda world, action: None
    with pytest.raises(WorldError, match=r"agent_0, step 0, seed 6, action int 2.*act\(\) returned NoneType None"):
        world.act([2])
    with pytest.raises(SettingError, match=r"has no action_spec.n_actions; give the number with actions="):
        del field.agents[0].action_spec
        from_objects(field)


def test_importing_the_contract_imports_no_environments():
    code = "import motet.world, sys; print({'gymnasium', 'pettingzoo', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
