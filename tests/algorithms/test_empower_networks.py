"""Networks of users in learned empowerment and in learned humans."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from support import foreign_networks as foreign
from tests.support.empowering import batch_of, open_states, spaces
from torch import nn

from motet import Settings, resume, train
from motet.algorithms import AttainConfig, EmpowerConfig
from motet.errors import SettingError
from motet.plan import enumerate_states
from motet.runs.config import describe, rebuild
from motet.schedule import Linear, Stages
from motet.worlds import Bushes, OneMind, UniformHumans

SMALL = {"hidden": (16,), "min_rows": 40, "batch_size": 16}
WORLD = functools.partial(Bushes, horizon=4)
STAGES = Stages({"attainment": 3, "full": None}, by="updates")


def plain(observation_space, outputs):
    """The layers of the shipped network with SMALL."""
    return nn.Sequential(nn.Linear(observation_space.shape[0], 16), nn.ReLU(), nn.Linear(16, outputs))


class Shared(nn.Module):
    """One layer for the number of a goal and one for the state, so that goals share what is known of a state."""

    def __init__(self, space, outputs, width=8):
        super().__init__()
        self.state, self.goal = nn.Linear(space.shape[0], width), nn.Embedding(outputs, width)

    def forward(self, seen):
        return self.state(seen).relu() @ self.goal.weight.T


@pytest.fixture(scope="module")
def corridor():
    model = WORLD()
    return OneMind(model), enumerate_states(model)


def test_a_module_with_the_shipped_layers_learns_what_the_shipped_network_learns(corridor):
    """Both networks, through stages: the same weights at the start give the same V_e and Q_r after ten updates."""
    world, graph = corridor
    shipped = EmpowerConfig(stages=STAGES, beta=5.0, target_every=2, **SMALL)
    own = replace(shipped, network=plain, robot_network=plain)
    learners = [config.build(*spaces(world), agents=1, seeds=[3]) for config in (shipped, own)]
    rows = [learner.weights()[0] for learner in learners]
    starts = [0, 0]
    for plans in zip(shipped.plans(world.coded), own.plans(world.coded), strict=True):
        dense, module = plans
        made = module.made()
        layers = [layer for one in dense.layers_of(rows[0][starts[0] :][: dense.size]) for layer in one.modules()]
        given = [layer for layer in layers if isinstance(layer, nn.Linear)]
        for layer, source in zip((made[0], made[2]), given, strict=True):
            layer.load_state_dict(source.state_dict())
        for parameter, value in zip(module.parameters, made.parameters(), strict=True):
            rows[1][starts[1] :][parameter.part] = value.detach().numpy().ravel()
        starts = [at + -(-plan.size // 16) * 16 for at, plan in zip(starts, plans, strict=True)]
    n = learners[1].n_weights
    learners[1].state[0, n : 2 * n] = learners[1].state[0, :n]
    for seed in range(10):
        batch = batch_of(world, shipped, open_states(graph, 16, seed), seed)
        for learner in learners:
            learner.update(batch, [0])
    codes = np.stack([world.coded.code(state) for state in open_states(graph)])
    found = []
    for config, learner in zip((shipped, own), learners, strict=True):
        behaviour = config.behaviour(*spaces(world))
        behaviour.load(learner.weights()[0], learner.header(0, 0))
        found.append((behaviour.attainments(codes), behaviour.log_losses(codes), *behaviour.powers_and_values(codes)))
    for mine, other in zip(*found, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)
    assert learners[1].counters.tolist() == [[10, 7]]


@pytest.mark.parametrize(
    "own",
    [
        {"network": foreign.Dropped, "robot_network": "mlp(hidden=(8,), noisy=True)"},
        {"network": functools.partial(Shared, width=4)},
        {"robot_network": foreign.mlp},
    ],
    ids=["random", "V_e", "Q_r"],
)
def test_lockstep_is_serial_with_networks_of_ones_own(own):
    """Dropout and noisy layers draw from the agent's streams, so they too give the same bits."""
    config = EmpowerConfig(stages=STAGES, beta=Linear(0.0, 5.0, 60, by="updates"), **own, **SMALL)
    settings = {"steps": 200, "actors": 2, "updates_per_step": 1.0}
    serial = train(WORLD, config, Settings(engine="serial", **settings))
    lockstep = train(WORLD, config, Settings(slack=0, **settings))
    for part, value in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value, lockstep.agents["robot_0"][part], err_msg=part)
    assert serial.updates == lockstep.updates
    assert serial.updates["robot_0"] > 100


def test_lockstep_is_serial_for_humans_with_a_network_of_ones_own():
    config = AttainConfig(network=foreign.Dropped, **SMALL)
    settings = {"steps": 150, "updates_per_step": 1.0}
    serial, lockstep = (
        train(WORLD, config, Settings(**way, **settings)) for way in ({"engine": "serial"}, {"slack": 0})
    )
    for part, value in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value, lockstep.agents["robot_0"][part], err_msg=part)


def test_a_run_with_networks_of_ones_own_is_resumed(tmp_path):
    config = EmpowerConfig(network=foreign.Dropped, robot_network="mlp(hidden=(8,), noisy=True)", **SMALL)
    once = Settings(engine="serial", steps=120, keep_replay=True, updates_per_step=1.0)
    train(WORLD, config, once, run=tmp_path / "run")
    half = resume(tmp_path / "run", steps=60)
    whole = train(WORLD, config, replace(once, steps=180))
    for part, value in whole.agents["robot_0"].items():
        np.testing.assert_array_equal(value, half.agents["robot_0"][part], err_msg=part)
    assert rebuild(describe(config), trust=True) == config


def test_agents_of_a_stack_learn_as_they_do_alone(corridor):
    """Four agents with modules are computed in one pass."""
    world, graph = corridor
    config = EmpowerConfig(network=plain, robot_network=Shared, stages=Stages(), beta=5.0, **SMALL)
    seeds = [4, 5, 6, 7]
    alone, stack = (config.build(*spaces(world), agents=len(own), seeds=own) for own in ([7], seeds))
    assert all(plan.stacks for plan in config.plans(world.coded))
    for seed in range(4):
        states = open_states(graph, 16, seed)
        alone.update(batch_of(world, config, states, seed), [0])
        stack.update(batch_of(world, config, states, seed, agents=4), [0] * 4)
    np.testing.assert_allclose(stack.state[3], alone.state[0], rtol=1e-4, atol=1e-6)


def test_networks_that_do_not_fit_are_named():
    world, humans = OneMind(WORLD()), UniformHumans(WORLD())
    with pytest.raises(SettingError, match=r"robot_network must be None with tables, got .*:plain"):
        EmpowerConfig(tables=True, robot_network=plain)
    with pytest.raises(SettingError, match="robot_network must be a function or class that makes"):
        EmpowerConfig(robot_network=3)
    with pytest.raises(SettingError, match=r"robot_network must return a tensor \[batch, 5\], got \[3, 2\]"):
        EmpowerConfig(robot_network=lambda space, outputs: nn.Linear(space.shape[0], 2)).sizes(*spaces(world))
    with pytest.raises(SettingError, match=r"network must return a tensor \[batch, 70\], got \[3, 2\]"):
        AttainConfig(network=lambda space, outputs: nn.Linear(space.shape[0], 2)).sizes(*spaces(humans))
    with pytest.raises(SettingError, match=r"got the buffer 1\.running_mean, which training changes"):
        EmpowerConfig(
            network=lambda space, outputs: nn.Sequential(nn.Linear(space.shape[0], outputs), nn.BatchNorm1d(outputs))
        ).sizes(*spaces(world))
