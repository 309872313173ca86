"""Object gridworlds that play their own turns: every rule of theirs holds, compared with their own loops."""

import copy
import pickle
import random

import foreign_gridworlds as foreign
import numpy as np
import pytest
from foreign_gridworlds import WORLDS, RandomModel, run_epoch
from gymnasium.spaces import Discrete

from motet.errors import SettingError, WorldError
from motet.testing import check_world
from motet.world import as_world, from_objects

LEARNERS = {foreign.Scripted: [1]}
TURNS = {foreign.OwnTransition: 15}


def own_rows(make, seed):
    """(turn, agent, observation, action, reward, end) of one epoch, as the project's own loop remembers them."""
    environment, rows = make(), []
    everyone = list(environment.agents)

    def recorded(index):
        def add(state, action, reward, done):
            rows.append([environment.turn, index, np.ravel(state).tolist(), action, reward, done])

        return add

    for index, agent in enumerate(everyone):
        if hasattr(agent, "model") and hasattr(agent.model or environment.models[index], "memory"):
            (agent.model or environment.models[index]).memory.add = recorded(index)
    if make is foreign.SharedModel:  # nothing is remembered: note what happens
        record_forgetful(environment, rows)
    if hasattr(environment, "take_turn"):
        run_epoch(environment, seed)
    else:
        random.seed(seed)
        np.random.seed(seed)
        environment.reset()
        while environment.turn < environment.max_turns:
            environment.turn += 1
            for _, entity in np.ndenumerate(environment.world.map):
                if entity.has_transitions and not isinstance(entity, foreign.Agent):
                    entity.transition(environment.world)
            for agent in environment.agents:
                agent.transition(environment.world)
        environment.world.is_done = True
    return environment, rows


def record_forgetful(environment, rows):
    for index, agent in enumerate(environment.agents):

        def transition(world, agent=agent, index=index):
            state = agent.pov(world)
            action = agent.get_action(state)
            row = [environment.turn, index, np.ravel(state).tolist(), action, agent.act(world, action)]
            rows.append([*row, agent.is_done(world)])

        agent.transition = transition


def our_rows(make, seed, **settings):
    """The same of the World, with the actions that the models would have chosen."""
    environment = make()
    models = [getattr(agent, "model", None) for agent in environment.agents]
    if make is foreign.Copied:
        models = environment.models
    world = from_objects(environment, learners=LEARNERS.get(make), **settings)
    indices = [int(name.split("_")[1]) for name in world.agents]
    rows, last = [], {}
    world.reset(seed)
    while group := world.group():
        (agent,) = group
        reward = world.reward(agent)
        if agent in last:
            last.pop(agent)[4:] = [reward, False]
        observation = world.observe(agent)
        action = models[indices[agent]].take_action(observation)
        rows.append([environment.turn, indices[agent], np.ravel(observation).tolist(), action, None, None])
        last[agent] = rows[-1]
        world.act([action])
        for end in world.ended():
            last.pop(end.agent)[4:] = [end.reward, end.terminated]
    assert not last
    return environment, rows


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("make", WORLDS)
def test_a_world_with_its_own_rules_plays_as_its_own_loop_does(make, seed):
    theirs, expected = own_rows(make, seed)
    ours, rows = our_rows(make, seed)
    learners = LEARNERS.get(make)
    expected = [row for row in expected if learners is None or row[1] in learners]
    for row in expected:
        row[2] = np.array(row[2], np.float32).tolist()
    if make is foreign.Clearing:  # the world is done after its agents have remembered their last turn
        assert theirs.turn < theirs.max_turns
        for row in expected[-2:]:
            row[5] = True
    assert len(rows) == len(expected) > 10
    assert rows == expected
    assert ours.turn == theirs.turn and ours.world.is_done == theirs.world.is_done
    assert ours.world.total_reward == theirs.world.total_reward
    assert [type(entity) for entity in ours.world.map.flat] == [type(entity) for entity in theirs.world.map.flat]
    assert getattr(ours, "thawed", 0) == getattr(theirs, "thawed", 0)
