"""Learned empowerment where goals are sampled: rows, targets against exact sums, and samplers that are wrong."""

import functools
import math
from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from tests.support.empowering import batch_of, open_states, spaces
from tests.support.killer import Killer
from tests.support.sampled_goals import BoxedBushes, SampledBushes, listed

from motet import Settings, resume, train
from motet.algorithms import AttainConfig, EmpowerConfig, EmpowerSampledConfig
from motet.algorithms._device import Device
from motet.algorithms._empower_learner import Scheduled
from motet.algorithms._empower_sampled_learner import SampledFormulas, SampledRows
from motet.errors import ModelError, SettingError
from motet.evaluation.exact import ExactEmpowerment
from motet.plan import enumerate_states
from motet.replay import ReplaySpec
from motet.schedule import Linear, Stages
from motet.system.supervisor import RestartLimits
from motet.worlds import Bushes, OneMind
from motet.worlds.rooms import Reach

SMALL = {"hidden": (16,), "min_rows": 40, "batch_size": 16, "goals_per_row": 2}
STAGES = Stages({"attainment": 20, "power": 10, "values": 20, "full": None}, ("full",), "updates")
WORLD = functools.partial(SampledBushes, horizon=4)

EXPONENTS = {"zeta": 2.0, "xi": 1.3, "eta": 1.1}


class Weighted:
    """Three cells, with probabilities and weights that have nothing to do with each other."""

    cells = (0, 2, 3)
    chances = (0.5, 0.25, 0.25)
    weights = (0.5, 1.0, 2.0)

    def sample(self, state, human, rng):
        i = int(rng.choice(3, p=self.chances))
        return self.goal(human, i), self.weights[i]

    @classmethod
    def goal(cls, human, i):
        return Reach(human, cls.cells[i], f"cell {cls.cells[i]}")


class Guesses:
    """V_e, -Q_r and X_h of any state, drawn once: what target networks might say."""

    def __init__(self, actions, humans):
        self._rng, self._known = np.random.default_rng(5), {}
        self._sizes = {"loss": actions, "power": humans}

    def attainment(self, state, human, goal):
        return self._known.setdefault((state, human, goal.tile), self._rng.uniform(0.1, 0.9))

    def of(self, name, state):
        return self._known.setdefault((state, name), self._rng.uniform(0.2, 2.0, self._sizes[name]))


class Scripted:
    """Gives these goals in turn, two for each human; all other goals have the weight 1."""

    def __init__(self, combinations):
        self._given = iter(combinations)

    def draw(self, state, number, seed):
        return next(self._given) if number == 2 else [[(Weighted.goal(h, 0), 1.0)] for h in (1, 2)]


def rows_and_targets(world, config, states, combinations, guesses):
    """Rows for these states with these goals, and their targets in double precision."""
    coded = world.coded
    own, coded.sampler = coded.sampler, Scripted(combinations)
    batch = batch_of(world, config, states, seed=1, precise=True)
    coded.sampler = own
    rows = SampledRows(batch, len(coded.humans), Device("cpu"), torch.float64)
    formulas = SampledFormulas(config, coded, Device("cpu"), torch.float64)
    seen = [coded.state(code) for code in rows.codes[0]]
    columns = [[(h, goal) for h, own in zip(coded.humans, one, strict=True) for goal, _ in own] for one in combinations]
    attained = np.array(
        [[guesses.attainment(seen[i], h, g) for h, g in columns[rows.row[0, i]]] for i in range(rows.n)]
    )
    here = np.array([[guesses.attainment(s, h, g) for h, g in own] for s, own in zip(states, columns, strict=True)])
    losses, power = (np.stack([guesses.of(name, state) for state in seen]) for name in ("loss", "power"))
    found = formulas.targets(
        rows, torch.from_numpy(attained[None]), torch.from_numpy(np.log(losses)[None]),
        Scheduled.of(config, [(0, 0)], Device("cpu"), torch.float64), torch.from_numpy(power[None, : rows.n]),
    )  # fmt: skip
    return batch, found, formulas.power_target(rows, torch.from_numpy(here[None])), columns


def later(model, config, guesses, state, human, goal):
    """What a successor counts for V_e."""
    if goal.is_achieved(state):
        return 1.0
    terminal = model.transition_probabilities(state, [0] * len(model.agents)) is None
    return 0.0 if terminal else config.human_gamma * guesses.attainment(state, human, goal)


def robot_policy(config, guesses, state):
    parts = guesses.of("loss", state) ** -config.beta
    return parts / parts.sum()


def value(model, config, guesses, state):
    """V_r of a successor."""
    if model.transition_probabilities(state, [0] * len(model.agents)) is None:
        return config.terminal_robot_value
    power, losses = guesses.of("power", state), guesses.of("loss", state)
    c = (1 - config.gamma) / -math.log(config.gamma)
    utility = -(np.mean([x**-config.xi for x in power]) ** config.eta)
    return c * utility - sum(p * one for p, one in zip(robot_policy(config, guesses, state), losses, strict=True))


class Small(Bushes):
    """Two humans beside a robot, few cells, and probabilities with few bits, which rows hold exactly."""

    goals = possible_goal_generator = None
    possible_goal_sampler = Weighted()

    def __init__(self):
        super().__init__("HR.H", horizon=3, thickest=8)


def exact_targets(model, config, guesses, state):
    """V_e of each goal, -Q_r and X_h of a state by the formulas: sums over all goals, actions and successors."""
    humans, sampler = model.human_agent_indices, Weighted
    omega = np.array(sampler.chances) * sampler.weights
    goals = {h: [sampler.goal(h, i) for i in range(3)] for h in humans}
    given = {h: [np.array(model.towards(state, h, goal)) for goal in goals[h]] for h in humans}
    priors = {h: omega @ np.array(given[h]) / omega.sum() for h in humans}
    robot, losses, attained = robot_policy(config, guesses, state), np.zeros(5), defaultdict(float)
    for profile in product(range(5), repeat=len(humans)):
        chance = dict(zip(humans, (priors[h][a] for h, a in zip(humans, profile, strict=True)), strict=True))
        for r in range(5):
            for p, after in model.transition_probabilities(state, [r, *profile]):
                losses[r] -= math.prod(chance.values()) * p * config.gamma * value(model, config, guesses, after)
                for h, a in zip(humans, profile, strict=True):
                    others = math.prod(one for human, one in chance.items() if human != h)
                    for i, goal in enumerate(goals[h]):
                        weight = robot[r] * given[h][i][a] * others * p
                        attained[h, goal.tile] += weight * later(model, config, guesses, after, h, goal)
    power = [
        sum(w * guesses.attainment(state, h, goal) ** config.zeta for w, goal in zip(omega, goals[h], strict=True))
        for h in humans
    ]
    return attained, losses, power


def all_combinations(humans):
    """All pairs of goals for each human, with the probability of drawing them."""
    own = [
        (chances[0] * chances[1], [(i, Weighted.weights[i]) for i in pair])
        for pair in product(range(3), repeat=2)
        for chances in [[Weighted.chances[i] for i in pair]]
    ]
    for parts in product(own, repeat=len(humans)):
        goals = [[(Weighted.goal(h, i), w) for i, w in part] for h, (_, part) in zip(humans, parts, strict=True)]
        yield math.prod(p for p, _ in parts), goals


CONFIG = EmpowerSampledConfig(profiles="all", beta=3.0, stages=Stages(), **EXPONENTS, **SMALL)


def means(model, world, config, state, guesses, weighted=True):
    """V_e, -Q_r and X_h as learned from rows with all goals that may be drawn, weighted by their probability."""
    chances, combinations = zip(*all_combinations(model.human_agent_indices), strict=True)
    _, found, power, columns = rows_and_targets(world, config, [state] * len(chances), combinations, guesses)
    chances, attained, weights = np.array(chances), defaultdict(float), defaultdict(float)
    importance = found.row_weight[0, :, 0].numpy() if weighted else 1.0
    for i, own in enumerate(columns):
        for g, (h, goal) in enumerate(own):
            weight = chances[i] * float(found.weight[0, i, g])
            attained[h, goal.tile] += weight * float(found.attainment[0, i, g])
            weights[h, goal.tile] += weight
    loss = np.average(found.loss[0].numpy(), axis=0, weights=chances * importance)
    return {key: attained[key] / weights[key] for key in attained}, loss, np.average(power[0], axis=0, weights=chances)


@pytest.mark.parametrize("at", [0, 7, -1])
def test_what_is_learned_from_drawn_goals_is_exact(at):
    """The mean over all goals that may be drawn is the sum of the formulas: no estimate of the priors is left."""
    model = Small()
    world, graph = OneMind(model), enumerate_states(model)
    state, guesses = open_states(graph)[at], Guesses(5, 2)
    attained, losses, power = exact_targets(model, CONFIG, guesses, state)
    found = means(model, world, CONFIG, state, guesses)
    for key, own in found[0].items():
        assert own == pytest.approx(attained[key], rel=1e-9)
    np.testing.assert_allclose(found[1], losses, rtol=1e-9)
    np.testing.assert_allclose(found[2], power, rtol=1e-9)


def test_rows_without_the_weights_of_their_goals_would_be_biased():
    """The test above has teeth: without the weights of rows, Q_r would be another one."""
    model = Small()
    world, graph = OneMind(model), enumerate_states(model)
    state, guesses = open_states(graph)[0], Guesses(5, 2)
    _, losses, _ = exact_targets(model, CONFIG, guesses, state)
    _, biased, _ = means(model, world, CONFIG, state, guesses, weighted=False)
    assert np.abs(biased / losses - 1).max() > 1e-3


@pytest.mark.parametrize("profiles", ["all", "drawn"])
def test_targets_in_double_precision_are_those_of_plain_python(profiles):
    model = Small()
    config, world, graph = replace(CONFIG, profiles=profiles), OneMind(model), enumerate_states(model)
    states, rng = open_states(graph, 8, seed=3), np.random.default_rng(2)
    combinations = [goals for _, goals in all_combinations(model.human_agent_indices)]
    combinations = [combinations[i] for i in rng.choice(len(combinations), len(states))]
    guesses = Guesses(5, 2)
    batch, found, power, columns = rows_and_targets(world, config, states, combinations, guesses)
    for i, (state, drawn) in enumerate(zip(states, combinations, strict=True)):
        policies = [[np.array(model.towards(state, goal.agent, goal)) for goal, _ in own] for own in drawn]
        weights = [[w for _, w in own] for own in drawn]
        mixed = [
            sum(w * p for w, p in zip(*one, strict=True)) / sum(one[0]) for one in zip(weights, policies, strict=True)
        ]
        profiles_of = [(profile, math.prod(m[a] for m, a in zip(mixed, profile, strict=True)))
                       for profile in product(range(5), repeat=2)]  # fmt: skip
        if profiles == "drawn":
            profiles_of = [(profile_of(world, batch, i, state, profiles_of, policies, mixed, weights), 1.0)]
        aims, totals, losses = np.zeros(4), np.zeros(4), np.zeros(5)
        robot, scale = robot_policy(config, guesses, state), np.array([1.0, 1.0])
        mean = np.array([np.mean(own) for own in weights]) / scale
        for profile, share in profiles_of:
            if share == 0:
                continue
            for r in range(5):
                for p, after in model.transition_probabilities(state, [r, *profile]):
                    losses[r] -= share * p * config.gamma * value(model, config, guesses, after)
            for column, (h, goal) in enumerate(columns[i]):
                who = model.human_agent_indices.index(h)
                k = column - 2 * who
                weight = share * policies[who][k][profile[who]] / mixed[who][profile[who]] * mean[1 - who]
                totals[column] += weight
                for r in range(5):
                    for p, after in model.transition_probabilities(state, [r, *profile]):
                        aims[column] += weight * robot[r] * p * later(model, config, guesses, after, h, goal)
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(found.attainment[0, i], np.nan_to_num(aims / totals), rtol=1e-9)
        np.testing.assert_allclose(found.weight[0, i], totals, rtol=1e-9)
        np.testing.assert_allclose(found.loss[0, i], losses, rtol=1e-9)
        np.testing.assert_allclose(found.row_weight[0, i], mean.prod(), rtol=1e-9)
        own = [
            np.mean([w * guesses.attainment(state, goal.agent, goal) ** config.zeta for goal, w in one])
            for one in drawn
        ]
        np.testing.assert_allclose(power[0, i], own, rtol=1e-9)


def profile_of(world, batch, i, state, profiles, policies, mixed, weights):
    """The profile of a row, found by its ratios and successors."""
    coded = world.coded
    told = {code.tobytes() for code in batch.extra["successor"][0, i, 0, : int(batch.extra["count"][0, i, 0])]}
    for profile, share in profiles:
        if share == 0:
            continue
        ratios = [
            p[a] / m[a] * np.mean(weights[1 - h])
            for h, (own, m, a) in enumerate(zip(policies, mixed, profile, strict=True))
            for p in own
        ]
        found = {
            coded.code(after).tobytes()
            for r in range(5)
            for _, after in coded.model.transition_probabilities(state, [r, *profile])
        }
        if np.allclose(batch.extra["ratio"][0, i, 0], ratios) and found == told:
            return profile
    raise AssertionError("no profile has these ratios")


# ---- rows


def test_the_goals_of_rows_have_nothing_to_do_with_what_humans_pursue():
    """At one state humans pursue what is near; the goals in its rows are those of the sampler all the same."""
    world = OneMind(WORLD(), human_epsilon=0.0)
    config = EmpowerSampledConfig(stages=Stages(), beta=0.0, **SMALL)
    behaviour = config.behaviour(*spaces(world))
    learner = config.build(*spaces(world), agents=1, seeds=[0])
    behaviour.begin(0)
    behaviour.load(learner.weights()[0], learner.header(0, 0))
    pursued, drawn = [], []
    for seed in range(300):
        world.reset(seed)
        for _ in range(3):
            actions, extra = behaviour.act(world.observe(0)[None])
            if world.state[1][1] == 0 and world.state[0] >= 2:  # human_0 has not left its cell
                pursued.append(world._world.drawn_goals[1].tile)
                drawn += extra["goal"][0, :2].argmax(1).tolist()
            world.act(actions)
    assert len(drawn) > 100
    near = [np.mean(np.array(tiles) == 0) for tiles in (pursued, drawn)]
    assert near[0] > 0.4, "the human stays where it wants to be"
    assert near[1] == pytest.approx(1 / 7, abs=0.1)


def test_a_row_with_boxes_as_goals_takes_less_than_a_kilobyte():
    world = OneMind(BoxedBushes())
    settings = EmpowerSampledConfig().replay(*spaces(world))
    spec = ReplaySpec(*spaces(world), capacity=100, extra=settings.extra)
    assert settings.extra["goal"].shape == (8, 4)
    assert spec.row_bytes < 1000, spec.row_bytes


def test_a_row_says_which_goals_hold():
    world = OneMind(WORLD())
    coded, config = world.coded, EmpowerSampledConfig(profiles="drawn", **SMALL)
    states = open_states(enumerate_states(coded.model), 12, seed=1)
    extra = batch_of(world, config, states, seed=4).extra
    for i, state in enumerate(states):
        tiles = extra["goal"][0, i].argmax(1).tolist()
        owners = np.array(coded.humans).repeat(2)
        held = [state[1][h] == tile for h, tile in zip(owners, tiles, strict=True)]
        assert np.unpackbits(extra["held"][0, i], count=4).tolist() == held
        for number in range(int(extra["count"][0, i, 0])):
            after = coded.state(extra["successor"][0, i, 0, number])
            held = [after[1][h] == tile for h, tile in zip(owners, tiles, strict=True)]
            assert np.unpackbits(extra["holds"][0, i, 0, number], count=4).tolist() == held


def test_the_mean_of_real_rows_is_that_of_all_goals_and_profiles():
    """Rows as actors make them, from the model's own sampler: Q_r is right on average."""
    model = Small()
    world, state, guesses = OneMind(model), enumerate_states(model).states[0], Guesses(5, 2)
    config = replace(CONFIG, profiles="drawn")
    drawn = [world.coded.sampler.draw(state, 2, seed) for seed in range(3000)]
    _, found, power, _ = rows_and_targets(world, config, [state] * len(drawn), drawn, guesses)
    _, losses, exact_power = exact_targets(model, config, guesses, state)
    mean = np.average(found.loss[0].numpy(), axis=0, weights=found.row_weight[0, :, 0])
    np.testing.assert_allclose(mean, losses, rtol=0.02)
    np.testing.assert_allclose(power[0].mean(0), exact_power, rtol=0.04)


# ---- learning


def test_networks_join_stage_by_stage():
    world = OneMind(WORLD())
    config = EmpowerSampledConfig(stages=Stages({"a": 2, "b": 3, "c": 4, "d": None}, by="updates"), beta=5.0, **SMALL)
    learner = config.build(*spaces(world), agents=1, seeds=[0])
    states = open_states(enumerate_states(world.coded.model), 16)
    for seed in range(10):
        learner.update(batch_of(world, config, states, seed), [0])
    assert learner.counters[0, :3].tolist() == [10, 5, 8]  # V_e, Q_r, X_h


def test_learning_goes_on_bit_for_bit_from_a_saved_state():
    world = OneMind(WORLD())
    config = EmpowerSampledConfig(stages=STAGES, beta=5.0, target_every=4, **SMALL)
    graph = enumerate_states(world.coded.model)
    batches = [batch_of(world, config, open_states(graph, 16, seed), seed) for seed in range(10)]
    whole = config.build(*spaces(world), agents=1, seeds=[3])
    whole.counters[:, 0] = 26
    whole.load()
    for i, batch in enumerate(batches):
        if i == 6:
            whole.save()
            kept = [getattr(whole, name).copy() for name in ("state", "counters", "random")]
        whole.update(batch, [i])
    other = config.build(*spaces(world), agents=1, seeds=[4])
    for name, value_ in zip(("state", "counters", "random"), kept, strict=True):
        getattr(other, name)[:] = value_
    other.load()
    for i in range(6, 10):
        other.update(batches[i], [i])
    np.testing.assert_array_equal(whole.state, other.state)
    assert whole.counters.tolist() == other.counters.tolist()


def test_agents_of_a_stack_learn_as_they_do_alone():
    world = OneMind(WORLD())
    config = EmpowerSampledConfig(stages=Stages(), beta=5.0, oldest=1.0, **SMALL)
    graph = enumerate_states(world.coded.model)
    alone, both = (config.build(*spaces(world), agents=len(seeds), seeds=seeds) for seeds in ([7], [6, 7]))
    for seed in range(4):
        mine, other = (batch_of(world, config, open_states(graph, 16, s), s) for s in (seed, seed + 50))
        alone.update(mine, [0])
        joined = batch_of(world, config, open_states(graph, 16, seed), seed, agents=2)
        joined.observation[0] = other.observation[0]
        for name, value_ in other.extra.items():
            joined.extra[name][0] = value_[0]
        both.update(joined, [0, 0])
    np.testing.assert_allclose(both.state[1], alone.state[0], rtol=1e-4, atol=1e-6)


CONFIG_OF_RUNS = EmpowerSampledConfig(stages=STAGES, beta=Linear(0.0, 5.0, 60, by="updates"), **SMALL)


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    """Samplers draw from the global generators, and yet what they draw is a function of the run's seed."""
    once = Settings(engine="serial", steps=120, keep_replay=True, updates_per_step=1.0)
    train(WORLD, CONFIG_OF_RUNS, once, run=tmp_path / "run")
    half = resume(tmp_path / "run", steps=60, trust=True)
    whole = train(WORLD, CONFIG_OF_RUNS, replace(once, steps=180))
    np.testing.assert_array_equal(whole.agents["robot_0"]["state"], half.agents["robot_0"]["state"])


@pytest.mark.slow
def test_reproducible_is_serial_also_if_learners_are_killed():
    settings = {"steps": 600, "updates_per_step": 0.5, "period": 20, "ahead": 0}
    serial = train(WORLD, CONFIG_OF_RUNS, Settings(engine="serial", **settings))
    killer = Killer(lambda row: row.name.startswith("learner"), most=2)
    limits = RestartLimits(restarts=100, back_off_s=0.001)
    told = Settings(limits=limits, metrics_every_s=0.02, **settings)
    result = train(WORLD, CONFIG_OF_RUNS, told, on_update=killer.watch)
    assert len(killer.sent) >= 1
    for part, value_ in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value_, result.agents["robot_0"][part], err_msg=part)


def test_the_comparison_with_the_exact_robot_needs_a_list_of_goals():
    world = OneMind(SampledBushes(horizon=2))
    config = EmpowerSampledConfig(stages=Stages(), beta=5.0, **SMALL)
    learner, behaviour = config.build(*spaces(world), agents=1, seeds=[0]), config.behaviour(*spaces(world))
    behaviour.load(learner.weights()[0], learner.header(0, 0))
    with pytest.raises(SettingError, match="goals must be listed to compute the exact solution, got a sampler"):
        ExactEmpowerment(behaviour)
    gap = ExactEmpowerment(behaviour, goals=listed(world.coded.model)).gap(behaviour)
    same = OneMind(Bushes(horizon=2))
    other = config.behaviour(*spaces(same))  # its goals are drawn from the list
    other.load(learner.weights()[0], learner.header(0, 0))
    assert ExactEmpowerment(other).gap(other) == gap
    assert gap.power_error > 0.1


# ---- samplers and models that are wrong


class Wrong(SampledBushes):
    """A sampler with one fault, from the second step on."""

    def __init__(self, fault):
        super().__init__(horizon=4)
        self.fault = fault

    @property
    def possible_goal_sampler(self):
        return self

    def sample(self, state, human):
        late = state[0] >= 1
        goal = Reach(human, 99 if self.fault == "never" else human, "a cell")
        return goal, {"zero": 0.0, "negative": -2.0}.get(self.fault, 1.0) if late else 1.0

    def encode_goal(self, goal):
        return np.array(["x"] if self.fault == "text" else [1.0])

    def towards(self, state, human, goal):
        return [0.2] * 5


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("zero", r"the weight of a drawn goal must be a finite number > 0, got 0\.0 .*\(state \(1, .*, human_0\)"),
        ("negative", r"the weight of a drawn goal must be a finite number > 0, got -2\.0 .*\(state \(1, .*, human_0\)"),
        ("text", r"encode_goal must return an array of finite numbers, got .* for Reach"),
        (
            "never",
            r"the goals of human_0 must hold somewhere, got 20,\d\d\d from the sampler of which none .* \(\d, \(\d",
        ),
    ],
)
def test_wrong_samplers_are_named_with_state_and_human(fault, word):
    config = EmpowerSampledConfig(**{**SMALL, "goals_per_row": 64 if fault == "never" else 2})
    with pytest.raises((ModelError, SettingError), match=word):
        train(lambda: Wrong(fault), config, Settings(engine="serial", steps=120, updates_per_step=1.0))


def test_what_does_not_fit_is_refused():
    world = OneMind(WORLD())
    for config in (EmpowerConfig(), AttainConfig()):
        with pytest.raises(
            SettingError, match=r"goals must be listed .* got a sampler, a CellGoals: use the algorithm"
        ):
            config.replay(*spaces(world))
    with pytest.raises(SettingError, match="tables must be False where goals are sampled, got True"):
        EmpowerSampledConfig(tables=True)
    with pytest.raises(SettingError, match=r"power_network must be a function or class that makes"):
        EmpowerSampledConfig(power_network=3)
