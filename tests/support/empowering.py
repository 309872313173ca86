"""Rows and batches for tests of learned empowerment, and the formulas of its targets in plain Python."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np

from motet.algorithm import stacked_batch
from motet.algorithms.empower import EmpowerConfig
from motet.schedule import Stages
from motet.worlds import Bushes

EXACT = EmpowerConfig(
    tables=True, profiles="all", beta=5.0, stages=Stages(), learning_rate=1.0, robot_learning_rate=1.0, target_every=1,
    batch_size=1, min_rows=1, epsilon=0.0, successors=4,
)  # fmt: skip
"""All profiles, tables that take each target as it is, and no stages: the backward induction of a plan."""


class Slow(Bushes):
    """Each agent that moves takes a quarter of a step more, and thick bushes delay all."""

    def transition_durations(self, state, actions, transitions):
        base = 0.5 + sum(action != 4 for action in actions) / 4
        return [base + sum(after[2]) % 2 / 8 for _, after in transitions]


def spaces(world):
    return world.observation_spaces[0], world.action_spaces[0]


def batch_of(world, config, states, seed=0, agents=1, precise=False):
    """A batch with one row for each of these states. ``precise``: in float64, which rows are not."""
    coded = world.coded
    behaviour = config.behaviour(*spaces(world))
    behaviour.begin(seed)
    if precise:
        for name, item in behaviour._fields.items():
            behaviour._fields[name] = replace(item, dtype=item.dtype.replace("float32", "float64"))
    learner = config.build(*spaces(world), agents=1, seeds=[0])
    behaviour.load(learner.weights()[0], learner.header(step=0, agent=0))
    codes = np.stack([coded.code(state) for state in states])
    _, extra = behaviour.act(codes)
    sized = replace(config, batch_size=len(states), min_rows=max(config.min_rows, len(states)))
    observations, actions = spaces(world)
    batch = stacked_batch(observations, actions, sized.replay(*spaces(world)), agents)
    batch.observation[:] = codes
    for name, value in extra.items():
        batch.extra[name] = np.repeat(value[None], agents, 0)
    return batch


def open_states(graph, number=None, seed=0):
    """The states of a graph that are not terminal; or some of them, drawn."""
    found = np.flatnonzero(~graph.terminal)
    if number is not None:
        found = np.random.default_rng(seed).choice(found, number)
    return [graph.states[i] for i in found.tolist()]


def induced(world, graph, config):
    """The learner's tables after one sweep over the levels: twice each, since pi_r needs the Q_r of the state.

    The first number of a state is its level.
    """
    learner = config.build(*spaces(world), agents=1, seeds=[0])
    levels: dict[int, list] = {}
    for state in open_states(graph):
        levels.setdefault(state[0], []).append(state)
    for level in sorted(levels, reverse=True):
        batch = batch_of(world, config, levels[level])
        for _ in range(2):
            learner.update(batch, [0])
    return learner


def plain_targets(model, config, state, profiles, attainment, loss):
    """V_e of each goal with its weight, -Q_r of each robot action, and its c if transitions have durations, from the
    model alone, number by number.

    ``profiles``: profiles of the humans' actions with their shares. ``attainment`` and ``loss`` are functions of a
    state: V_e of all goals, and -Q_r of all actions, followed by their c if transitions have durations.
    """
    timed, rate = hasattr(model, "transition_durations"), -math.log(config.gamma)
    humans, goals = model.human_agent_indices, [model.goals(h) for h in model.human_agent_indices]
    actions = range(5)

    def policy_of(state):
        parts = [one ** (-config.beta) for one in loss(state)[:5]]
        return [part / sum(parts) for part in parts]

    def is_terminal(state):
        return model.transition_probabilities(state, [0] * len(model.agents)) is None

    def value(state):
        if is_terminal(state):
            return -1e-10
        attained, losses, power = iter(attainment(state)), loss(state), []
        for own in goals:
            power.append(sum(w * next(attained) ** config.zeta for _, w in own))
        utility = -((sum(x ** (-config.xi) for x in power) / len(power)) ** config.eta)
        policy = policy_of(state)
        c = sum(p * one for p, one in zip(policy, losses[5:], strict=True)) if timed else (1 - config.gamma) / rate
        return c * utility - sum(p * one for p, one in zip(policy, losses[:5], strict=True))

    def transitions(state, joint):
        """Probability, successor and duration."""
        found = model.transition_probabilities(state, joint)
        times = model.transition_durations(state, joint, found) if timed else [1.0] * len(found)
        return [(p, after, d) for (p, after), d in zip(found, times, strict=True)]

    def human_discount(duration):
        return config.human_gamma if config.human_rho is None else math.exp(-config.human_rho * duration)

    robot = policy_of(state)
    given = [[model.towards(state, h, goal) for goal, _ in own] for h, own in zip(humans, goals, strict=True)]
    weights = [[w for _, w in own] for own in goals]
    columns = [(h, g) for h, own in enumerate(goals) for g in range(len(own))]
    aims, totals, losses, lasts = [0.0] * len(columns), [0.0] * len(columns), [0.0] * 5, [0.0] * 5
    for profile, share in profiles:
        outcomes = {r: transitions(state, [r, *profile]) for r in actions}
        for r, found in outcomes.items():
            losses[r] -= share * sum(p * config.gamma**d * value(after) for p, after, d in found)
            lasts[r] += share * sum(p * (1 - config.gamma**d) / rate for p, _, d in found)
        for column, (h, g) in enumerate(columns):
            prior = sum(w * pi[profile[h]] for w, pi in zip(weights[h], given[h], strict=True)) / sum(weights[h])
            weight, goal = share * given[h][g][profile[h]] / prior, goals[h][g][0]
            totals[column] += weight
            for r, found in outcomes.items():
                for p, after, d in found:
                    later = 0.0 if is_terminal(after) else human_discount(d) * attainment(after)[column]
                    aims[column] += weight * robot[r] * p * (1.0 if goal.is_achieved(after) else later)
    return [a / t if t else 0.0 for a, t in zip(aims, totals, strict=True)], totals, losses + lasts * timed


def all_profiles(model, state):
    """All profiles of the humans' actions, with the products of their priors."""
    priors = []
    for human in model.human_agent_indices:
        own = model.goals(human)
        total = sum(w for _, w in own)
        priors.append(sum(w / total * np.array(model.towards(state, human, goal)) for goal, w in own))
    for profile in product(range(5), repeat=len(priors)):
        share = math.prod(prior[a] for prior, a in zip(priors, profile, strict=True))
        if share > 0:
            yield profile, share
