"""Learned empowerment where transitions have durations: discounts, and the weight c of U_r in V_r."""

import functools
import math
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.empowering import EXACT, Slow, all_profiles, batch_of, induced, open_states, plain_targets, spaces
from tests.support.small_models import Layered

from motet import Settings, train
from motet.algorithms import AttainConfig, EmpowerConfig
from motet.algorithms._device import Device
from motet.algorithms._empower_learner import Formulas, ModelRows, Scheduled
from motet.cli.flags import parse
from motet.errors import ModelError, SettingError
from motet.evaluation.exact import ExactEmpowerment
from motet.plan import Robot, enumerate_states, solve_robot
from motet.replay import ReplaySpec
from motet.schedule import Linear, Stages
from motet.worlds import Bushes, OneMind

SMALL = {"hidden": (16,), "min_rows": 40, "batch_size": 16}


def whims(state, human, goal):
    """Any policies that differ between states, humans and goals."""
    seed = zlib.crc32(repr((state, human, goal.name)).encode())
    return np.random.default_rng(seed).dirichlet(np.ones(2))


@pytest.mark.parametrize(
    "settings",
    [
        {"human_gamma": 0.9},
        {"human_gamma": 1.0, "human_rho": 0.3, "zeta": 2.0, "eta": 1.1, "xi": 1.5},
        {"human_gamma": 1.0, "human_rho": 0.1, "gamma": 1.0, "achieved": "one"},
        {"human_gamma": 1.0, "human_rho": 0.1, "achieved": "zero", "terminal_robot_value": -0.5},
    ],
    ids=["gamma", "rho", "one", "zero"],
)
@pytest.mark.parametrize("robots", [(2,), (2, 3)], ids=["one robot", "two robots"])
def test_the_fixed_point_is_the_exact_solution(settings, robots):
    """Also of a model whose joint actions have the same successor after different durations."""
    model = Layered(
        seed=len(robots), humans=(2, 2), robots=robots, durations=True, order=[2, 0, 1, 3][: 2 + len(robots)]
    )
    doubled = {key: [(p / 2, after) for p, after in found for _ in range(2)] for key, found in model.table.items()}
    model.times = {key: [t * s for t in times for s in (0.5, 1.5)] for key, times in model.times.items()}
    model.table = doubled
    goals = dict.fromkeys(model.human_agent_indices, model.goals)
    world, graph = OneMind(model, whims, goals), enumerate_states(model)
    config = replace(EXACT, successors=6, **settings)
    robot = Robot(
        config.beta, zeta=config.zeta, xi=config.xi, eta=config.eta, gamma=config.gamma,
        terminal_robot_value=config.terminal_robot_value,
    )  # fmt: skip
    exact = solve_robot(
        graph, goals, whims, robot, gamma=config.human_gamma, rho=config.human_rho, achieved=config.achieved
    )
    learner = induced(world, graph, config)
    inner = np.flatnonzero(~graph.terminal)
    numbers = world.coded.numbers(np.stack([world.coded.code(graph.states[i]) for i in inner]))
    actions = world.coded.robot_actions
    q, c = -np.exp(learner._losses[0, numbers, :actions]), np.exp(learner._losses[0, numbers, actions:])
    np.testing.assert_allclose(q, exact.arrays["robot_q"][inner], rtol=1e-5)
    counts = ~exact.achieved[inner].astype(bool) if config.achieved != "stay" else np.s_[:]
    np.testing.assert_allclose(
        learner._values[0, numbers][counts], exact.arrays["attainment"][inner][counts], rtol=1e-5, atol=1e-7
    )
    policy, value, utility = (exact.arrays[name][inner] for name in ("robot_policy", "robot_value", "utility"))
    np.testing.assert_allclose((policy * (c * utility[:, None] + q)).sum(1), value, rtol=1e-5)
    behaviour = config.behaviour(*spaces(world))
    behaviour.load(learner.weights()[0], learner.header(0, 0))
    gap = ExactEmpowerment(behaviour).gap(behaviour)
    assert gap.share == pytest.approx(1.0, abs=1e-4)
    assert gap.value == pytest.approx(gap.exact_value, rel=1e-5)


class Waits:
    """One human and one robot on a line of states; from each of them the next one follows after a given time."""

    agents, action_space = ("human", "robot"), SimpleNamespace(n=1)
    human_agent_indices, robot_agent_indices = (0,), (1,)
    times = (3.0, 0.5, 2.0)

    def reset(self):
        pass

    def get_state(self):
        return (0,)

    def set_state(self, state):
        pass

    def transition_probabilities(self, state, actions):
        return [(1.0, (state[0] + 1,))] if state[0] < len(self.times) else None

    def transition_durations(self, state, actions, transitions):
        return [self.times[state[0]]]

    def goals(self, human):
        return [(SimpleNamespace(name="anything", is_achieved=lambda state: True), 1.0)]

    def towards(self, state, human, goal):
        return [1.0]


def test_the_loss_of_a_state_counts_for_as_long_as_the_state_lasts():
    """U_r is -1 everywhere, so -Q_r is an integral: of the discount, over the time after the step."""
    world = OneMind(Waits)
    graph, config = enumerate_states(Waits()), replace(EXACT, gamma=0.8)
    learner = induced(world, graph, config)
    starts = np.cumsum([0.0, *Waits.times])

    def integral(begin, end):
        return (0.8**begin - 0.8**end) / -math.log(0.8)

    for step in range(2):
        number = world.coded.numbers(world.coded.code((step,))[None])[0]
        found = np.exp(learner._losses[0, number])
        first, second, last = starts[step], starts[step + 1], starts[3]
        assert found[0] == pytest.approx(integral(second - first, last - first), rel=1e-5)
        assert found[1] == pytest.approx(integral(0, second - first), rel=1e-5)


@pytest.mark.parametrize("profiles", ["all", "drawn"])
def test_targets_in_double_precision_are_those_of_plain_python(profiles):
    model = Slow(horizon=3, thickest=8)  # its probabilities and durations have few bits, so rows hold them exactly
    world, graph = OneMind(model), enumerate_states(model)
    config = EmpowerConfig(
        profiles=profiles,
        beta=5.0,
        stages=Stages(),
        zeta=2.0,
        xi=1.3,
        eta=1.1,
        human_gamma=1.0,
        human_rho=0.07,
        **SMALL,
    )
    states, coded = open_states(graph, 8, seed=3), world.coded
    batch = batch_of(world, config, states, seed=1, precise=True)
    rows = ModelRows(batch, len(coded.weights), Device("cpu"), torch.float64)
    rng, known = np.random.default_rng(5), {}
    for code in rows.codes[0]:
        known.setdefault(code.tobytes(), (rng.uniform(0.1, 0.9, 14), rng.uniform(0.5, 20, 10)))
    attained, losses = (np.stack([known[code.tobytes()][i] for code in rows.codes[0]]) for i in (0, 1))
    found = Formulas(config, coded, Device("cpu"), torch.float64).targets(
        rows, torch.from_numpy(attained[None, : rows.n]), torch.from_numpy(np.log(losses)[None]),
        Scheduled.of(config, [(0, 0)], Device("cpu"), torch.float64),
    )  # fmt: skip
    for i, state in enumerate(states):
        chosen = list(all_profiles(model, state))
        if profiles == "drawn":  # the first numbers after the seed decide
            priors = coded.priors(coded.policies(state))
            draws = np.random.default_rng(1).random((len(states), 3))[i, 1:]
            drawn = (int((prior.cumsum() <= u).sum()) for prior, u in zip(priors, draws, strict=True))
            chosen = [(tuple(drawn), 1.0)]
        aim, weight, loss = plain_targets(
            model, config, state, chosen, *(lambda s, k=k: known[coded.code(s).tobytes()][k] for k in (0, 1))
        )
        assert len(loss) == 10
        np.testing.assert_allclose(found.loss[0, i], loss, rtol=1e-9)
        np.testing.assert_allclose(found.weight[0, i], weight, rtol=1e-9)
        np.testing.assert_allclose(found.attainment[0, i], aim, rtol=1e-9)


def test_only_rows_of_models_with_durations_hold_them():
    def bytes_of(world):
        settings = EmpowerConfig().replay(*spaces(world))
        return ReplaySpec(*spaces(world), capacity=10, extra=settings.extra).row_bytes

    plain, slow = OneMind(Bushes(horizon=3)), OneMind(Slow(horizon=3))
    assert "duration" not in EmpowerConfig().replay(*spaces(plain)).extra
    assert bytes_of(slow) == bytes_of(plain) + 5 * 4 * 4


@pytest.mark.parametrize("config", [EmpowerConfig, AttainConfig])
def test_lockstep_is_serial(config):
    rates = {"human_gamma": 1.0, "human_rho": 0.1} if config is EmpowerConfig else {"gamma": 1.0, "rho": 0.1}
    settings = {"steps": 120, "updates_per_step": 1.0}
    world = functools.partial(Slow, horizon=3)
    serial, lockstep = (
        train(world, config(**rates, **SMALL), Settings(**engine, **settings))
        for engine in ({"engine": "serial"}, {"slack": 0})
    )
    for part, value in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value, lockstep.agents["robot_0"][part], err_msg=part)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (lambda n: [-1.0] * n, r"transition_durations must give a finite number >= 0 .* got list \[-1.0"),
        (lambda n: [math.nan] * n, r"transition_durations must give a finite number >= 0 .* got list \[nan"),
        (lambda n: [1.0] * (n + 1), r"transition_durations must give a finite number >= 0 for each of \d+ transitions"),
        (lambda n: None, "transition_durations raised, or gave no numbers: TypeError"),
    ],
    ids=["negative", "nan", "too many", "none"],
)
def test_wrong_durations_are_named_with_state_and_actions(given, error):
    world = OneMind(Slow(horizon=3))
    world.coded.model.transition_durations = lambda state, actions, transitions: given(len(transitions))
    with pytest.raises(ModelError, match=error + r".*\(state \(0, .*, actions \[\d, \d, \d\]\)"):
        batch_of(world, EmpowerConfig(**SMALL), [world.coded.first])


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.1", 0.1), ("linear:0.1:0.05:100:updates", Linear(0.1, 0.05, 100, by="updates")), ("None", None)],
)
def test_a_rate_is_a_flag(text, value):
    flags = ["bushes", "--algorithm", "empower", "--empower.human-gamma", "1", "--empower.human-rho", text]
    assert parse(flags).configs.human_rho == value


def test_a_discount_and_a_rate_exclude_each_other():
    with pytest.raises(SettingError, match=r"human_gamma must be 1 where human_rho is given, got 0.95 and 0.1"):
        EmpowerConfig(human_rho=0.1)
    with pytest.raises(SettingError, match=r"gamma must be 1 where rho is given, got 0.95 and 0.1"):
        AttainConfig(rho=0.1)
