"""Object gridworlds: all agents at once, pictures, and the way into a foreign loop and back."""

import functools

import numpy as np
import pytest
from support.foreign_gridworlds import Centred, Gem, OwnTransition, Plain, Scripted, run_epoch

import motet
from motet.algorithms import DQNConfig
from motet.errors import SettingError
from motet.policies.entries import load_policies
from motet.testing import check_world
from motet.training import Settings, object_world, train_objects
from motet.world import as_world, from_objects
from motet.world.film import Film


class Walker:
    """Sees all places, moves along a ring, and earns what it has at its new place. Nobody can share a place."""

    def __init__(self, number):
        self.number = number

    def pov(self, world):
        return [float(world.places[i]) for i in range(6)]

    def act(self, world, action):
        there = (self.at + action - 1) % 6
        world.log.append((self.number, action))
        if world.places[there] not in (0, self.number):
            return -1.0
        world.places[self.at], world.places[there], self.at = 0, self.number, there
        return float(there)

    def is_done(self, world):
        return self.at == 5


class Ring:
    """A project without take_turn: agents only observe and act."""

    max_turns = 4

    def __init__(self):
        self.world = type("World", (), {"entities": (), "places": [0] * 6, "log": []})()
        self.agents = [Walker(1), Walker(2)]

    def reset(self):
        self.world.places[:] = [0] * 6
        self.world.log = []
        for agent in self.agents:
            agent.at = 2 * (agent.number - 1)
            self.world.places[agent.at] = agent.number


# At once


def test_all_agents_observe_and_decide_before_the_first_one_acts():
    world = from_objects(Ring(), actions=3, at_once=True)
    world.reset(0)
    assert list(world.group()) == [0, 1]
    before = [world.observe(agent).tolist() for agent in range(2)]
    assert before == [[1, 0, 2, 0, 0, 0]] * 2
    world.act([2, 2])
    assert [world.reward(agent) for agent in range(2)] == [1.0, 3.0]
    assert world.observe(0).tolist() == world.observe(1).tolist() == [0, 1, 0, 2, 0, 0]
    in_turn = from_objects(Ring(), actions=3)
    in_turn.reset(0)
    in_turn.act([2])
    assert in_turn.group() == (1,) and in_turn.observe(1).tolist() == [0, 1, 2, 0, 0, 0]


def test_agents_end_one_by_one_and_the_turns_run_out():
    world = from_objects(Ring(), actions=3, at_once=True)
    world.reset(0)
    for _ in range(3):
        world.act([1, 2])
    assert [(end.agent, end.terminated) for end in world.ended()] == [(1, True)] and list(world.group()) == [0]
    world.act([1])
    assert [(end.agent, end.terminated, end.truncated) for end in world.ended()] == [(0, False, True)]
    assert not world.group()
    check_world(lambda: from_objects(Ring(), actions=3, at_once=True))


def test_entities_move_before_all_agents_observe():
    class Tide:
        has_transitions = True

        def transition(self, world):
            world.log.append("tide")

    class Sea(Ring):
        def __init__(self):
            super().__init__()
            self.world.entities = (Tide(),)

    environment = Sea()
    world = from_objects(environment, actions=3, at_once=True)
    world.reset(0)
    world.act([1, 2])
    world.act([1, 1])
    assert environment.world.log == ["tide", (1, 1), (2, 2), "tide", (1, 1), (2, 1), "tide"]


@pytest.mark.parametrize(
    ("make", "more", "says"),
    [
        (Plain, {}, "got a Plain that plays its own turns"),
        (OwnTransition, {}, "got a OwnTransition that plays its own turns"),
        (Ring, {"learners": [0], "actions": 3}, "got learners"),
    ],
)
def test_at_once_is_refused_where_the_environment_decides(make, more, says):
    with pytest.raises(SettingError, match=f"at_once is only valid if motet plays the whole turn.*{says}"):
        from_objects(make(), at_once=True, **more)


# Pictures


def drawn(make):
    world, film = make(), Film()
    world.reset(0)
    film.capture(world)
    while group := world.group():
        world.act([0] * len(group))
        world.ended()
        film.capture(world, group)
    return film


def picture(environment):
    return np.array([[isinstance(entity, Gem) * 255 for entity in line] for line in environment.world.map], np.uint8)


class DrawsItself(Plain):
    def render(self):
        return picture(self)


class OldDrawing(Plain):
    def render(self, mode="human"):
        assert mode == "rgb_array"
        return picture(self)


class DrawsItsWorld(Plain):
    def __init__(self):
        super().__init__()
        self.world.render = lambda: picture(self)


@pytest.mark.parametrize("kind", [DrawsItself, OldDrawing, DrawsItsWorld])
def test_a_renderer_is_found_where_there_is_one(kind):
    film = drawn(lambda: from_objects(kind()))
    assert not film.problem and len(film.frames) == 21 and film.frames[0].shape == (4, 5, 3)
    assert len({frame.tobytes() for frame in film.frames}) > 3


@pytest.mark.parametrize("more", [{}, {"learners": [1]}])
def test_one_line_is_enough_where_there_is_none(more):
    assert drawn(lambda: from_objects(Scripted(), **more)).problem == "the world renders nothing"
    film = drawn(lambda: from_objects(Scripted(), render=picture, **more))
    assert not film.problem and len(film.frames) == 21
    grey = np.zeros((6, 1), np.uint8)
    for at_once in (False, True):
        world = from_objects(Ring(), actions=3, render=lambda environment: grey, at_once=at_once)
        world.reset(0)
        assert world.render().shape == (6, 1)
    with pytest.raises(SettingError, match="render must be a function of the environment"):
        from_objects(Plain(), render="picture")


# In one call, and back


class MotetModel:
    """A motet policy as a model of the project: what the guide shows."""

    def __init__(self, policy, shape, memory):
        self.policy, self.shape, self.memory = policy, shape, memory
        self.policy.reset(seed=0)

    def take_action(self, state):
        return int(self.policy.act(np.asarray(state, np.float32).reshape(self.shape)))


def foreign_returns(environment, policies, seeds):
    """Play the project's own loop with motet's policies as its models; return each epoch's sum of rewards."""
    shape = as_world(environment).observation_spaces[0].shape
    environment = type(environment)()  # motet watches the methods of the other one
    for agent, policy in zip(environment.agents, policies.values(), strict=True):
        agent.model = MotetModel(policy, shape, agent.model.memory)
    returns = []
    for seed in seeds:
        run_epoch(environment, seed)
        returns.append(environment.world.total_reward)
    return returns


def motet_returns(make, policies, seeds):
    """Play the same episodes in motet."""
    world, returns = make(), []
    for seed in seeds:
        world.reset(seed)
        total = 0.0
        while group := world.group():
            total += sum(world.reward(agent) for agent in group)
            world.act([policies[world.agents[agent]].act(world.observe(agent)) for agent in group])
            total += sum(end.reward for end in world.ended())
        returns.append(total)
    return returns


CONFIG = DQNConfig(hidden=(32,), batch_size=32, min_rows=64, gamma=0.8)


def test_a_projects_environment_is_trained_in_one_call_and_its_policies_play_in_its_loop(tmp_path):
    environment = Plain()
    before = len(environment.agents[0].model.memory.rows)
    result = train_objects(environment, CONFIG, Settings(steps=200, engine="serial"), run=tmp_path / "run")
    assert result.state == "done" and result.steps == 200
    assert len(environment.agents[0].model.memory.rows) == before and not vars(environment.agents[0]).get("pov")
    policies = load_policies(tmp_path / "run", world=object_world(Plain))
    seeds = range(100, 110)
    assert foreign_returns(Plain(), policies, seeds) == motet_returns(object_world(Plain), policies, seeds)


def test_objects_that_are_not_environments_are_refused():
    with pytest.raises(SettingError, match=r"environment must be an object with reset\(\), agents and world, or a"):
        train_objects(3)
    for given in (Plain, Plain(), functools.partial(Plain, seed=3)):
        assert object_world(given, turns=3)().agents == ("agent_0", "agent_1")
    assert isinstance(object_world(Ring(), actions=3, at_once=True)(), type(as_world(motet.worlds.MatrixGame())))


@pytest.mark.slow
def test_a_trained_policy_reaches_in_the_foreign_loop_what_it_had_in_motet(tmp_path):
    make = object_world(Centred)
    settings = Settings(steps=10_000, engine="serial", updates_per_step=0.5)
    train_objects(Centred(), CONFIG, settings, run=tmp_path / "run")
    here = motet.evaluate(make, tmp_path / "run", episodes=200).team()
    chance = motet.evaluate(make, "random", episodes=200).team()
    there = foreign_returns(Centred(), load_policies(tmp_path / "run", world=make), range(10_000, 10_200))
    half = 1.96 * np.std(there, ddof=1) / len(there) ** 0.5
    low, high = np.mean(there) - half, np.mean(there) + half
    assert low < here.high and here.low < high  # the intervals overlap
    assert low > chance.high + 5
