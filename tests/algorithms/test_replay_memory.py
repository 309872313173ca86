"""DQN, IQN and TD3 with a memory: what an update learns from sequences, against a plain implementation."""

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from support.cue import Cue
from support.foreign_networks import Recalling, RecallingSequences, TorchGRU, mlp, mlp_features

from motet.algorithm import stacked_batch
from motet.algorithms import DQNConfig, IQNConfig, TD3Config
from motet.algorithms.td3 import TD3Layout
from motet.errors import NotReadyError, SettingError
from motet.testing import check_algorithm
from motet.testing.algorithm import _fill
from motet.training.evaluator import play_greedily
from motet.training.run import train
from motet.training.settings import Settings
from motet.world import as_world
from motet.world.batch import LoopedWorlds
from motet.worlds import MatrixGame, TreasureHunt

VECTOR, N, BOX = Box(-1, 1, (5,)), Discrete(3, start=2), Box(-2, 2, (2,))
SMALL: dict[str, Any] = {
    "memory_size": 8, "hidden": (8,), "batch_size": 4, "min_rows": 4, "sequence_length": 5, "burn_in": 3
}  # fmt: skip
KINDS = pytest.mark.parametrize("kind", ["gru", "lstm"])


@pytest.mark.parametrize(
    "config",
    [
        DQNConfig(memory="gru", **SMALL),
        DQNConfig(memory="lstm", prioritised=True, dueling=True, n_step=3, **SMALL),
        DQNConfig(memory="gru", encoder=mlp_features, double=False, **{**SMALL, "burn_in": 0}),
        IQNConfig(memory="gru", prioritised=True, **SMALL),
        IQNConfig(memory="lstm", head=(8,), double=False, n_step=2, **SMALL),
        DQNConfig(encoder=Recalling, prioritised=True, dueling=True, n_step=3, **SMALL),
        IQNConfig(encoder=RecallingSequences, head=(8,), **{**SMALL, "burn_in": 0}),
        DQNConfig(encoder=Recalling, memory="gru", **SMALL),
        IQNConfig(encoder=RecallingSequences, memory="lstm", prioritised=True, **SMALL),
    ],
    ids=lambda config: f"{type(config).__name__}, {config.memory or 'own'}",
)
def test_algorithms_with_a_memory_keep_the_contract(config):
    check_algorithm(config, VECTOR, N, masked=True)


def actions_of(config: Any) -> Any:
    return BOX if isinstance(config, TD3Config) else N


def filled(config: Any, agents: int = 1, seed: int = 0) -> Any:
    spaces = VECTOR, actions_of(config)
    batch = stacked_batch(*spaces, config.replay(*spaces), agents)
    _fill(batch, *spaces, np.random.default_rng(seed), config.n_step)
    return batch


def dense(layers: Any, row: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    layers = list(layers)
    for i, (inputs, outputs, weight, bias) in enumerate(layers):
        out = out @ row[weight : weight + inputs * outputs].view(outputs, inputs).T + row[bias : bias + outputs]
        out = out if i == len(layers) - 1 else out.relu()
    return out


def run_cell(kind: str, plan: Any, row: torch.Tensor, x: torch.Tensor, memory: Any, valid: Any, cut: int) -> Any:
    """The outputs ``[S, H]`` of torch's own cell on one sequence; no gradient flows from before row ``cut``."""
    cell = (torch.nn.GRUCell if kind == "gru" else torch.nn.LSTMCell)(plan.inputs, plan.outputs)
    weights = {
        name: row[part].view(shape)
        for (name, _), part, shape in zip(cell.named_parameters(), plan.parts, plan.shapes, strict=True)
    }
    outs, state, n = [], None, plan.outputs
    for t in range(len(x)):
        begins = t == 0 or (t < len(valid) and not valid[t - 1])
        before = torch.tensor(memory[t]) if begins else state
        before = before.detach() if t == cut else before
        given = before if kind == "gru" else (before[:n], before[n:])
        state = torch.func.functional_call(cell, weights, (x[t], given))
        state = state if kind == "gru" else torch.cat(state)
        outs.append(state[:n])
    return torch.stack([out.detach() if t < cut else out for t, out in enumerate(outs)])


@pytest.mark.parametrize(
    "config",
    [
        TD3Config(memory="gru", **SMALL),
        TD3Config(memory="lstm", prioritised=True, normalise=True, n_step=3, **SMALL),
        TD3Config(memory="gru", encoder=mlp_features, noise_memory=0.5, **{**SMALL, "burn_in": 0}),
        TD3Config(encoder=Recalling, prioritised=True, normalise=True, n_step=3, **SMALL),
        TD3Config(encoder=Recalling, memory="lstm", **SMALL),
    ],
)
def test_td3_with_a_memory_keeps_the_contract(config):
    check_algorithm(config, VECTOR, BOX)


@KINDS
@pytest.mark.parametrize("double", [False, True])
def test_an_update_of_dqn_is_that_of_a_plain_implementation(kind, double):
    """Borders, burn-in, n-step returns, stored states and importance weights: gradient and priorities."""
    config = DQNConfig(memory=kind, double=double, prioritised=True, n_step=2, max_grad_norm=None, **SMALL)
    dqn = config.build(VECTOR, N, 1, [3])
    batch = filled(config)
    n = dqn.n_weights
    dqn.state[0, n : 2 * n] = dqn.state[0, :n] * 1.1  # the target network differs
    rows = torch.tensor(dqn.state[0, : 2 * n]).view(2, n)
    online, target = rows[0].clone().requires_grad_(), rows[1]
    plan = config._plan(VECTOR, N)
    cut, (first, second) = plan.first.size, (plan.first, plan.second)

    def values(row: torch.Tensor, k: int) -> torch.Tensor:
        seen = torch.tensor(batch.observation[0, k])
        out = run_cell(kind, first, row[:cut], seen, batch.extra["memory"][0, k], batch.valid[0, k], config.burn_in)
        return dense(second.layers, row[cut:], out)

    total, count, priorities = torch.zeros(()), 0, []
    for k in range(4):
        q, q_target, errors = values(online, k), values(target, k), []
        for t in range(config.burn_in, 8):
            if not batch.valid[0, k, t]:
                continue
            end = t + int(batch.ahead[0, k, t])
            best = (q if double else q_target)[end].argmax()
            goal = batch.reward[0, k, t] + batch.discount[0, k, t] * q_target[end, best].detach()
            error = goal - q[t, int(batch.action[0, k, t]) - 2]
            total = total + float(batch.weight[0, k]) * torch.nn.functional.huber_loss(error, torch.zeros(()))
            count += 1
            errors.append(float(error.detach().abs()))
        priorities.append(0.9 * max(errors) + 0.1 * float(np.mean(errors)))
    (total / count).backward()
    assert count < 4 * 5, "there are borders"
    update = dqn.update(batch, [0])
    torch.testing.assert_close(dqn._grad[0], online.grad, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(update.priorities[0], priorities, rtol=1e-3)
    np.testing.assert_allclose(update.metrics["loss"], float(total.detach()) / count, rtol=1e-3)


@KINDS
def test_an_update_of_td3_is_that_of_a_plain_implementation(kind):
    """The critics, and the memory that learns with them."""
    config = TD3Config(memory=kind, prioritised=True, n_step=2, target_noise=0.0, **SMALL)
    td3, batch, layout = config.build(VECTOR, BOX, 1, [3]), filled(config), TD3Layout.of(config, VECTOR, BOX)
    halves, c = torch.tensor(td3.state[0]).view(2, -1), layout.size
    sees = halves[0, layout.encoder_part].clone().requires_grad_()
    judges = [half[layout.critics : layout.critics + c].clone().requires_grad_() for half in halves]
    targets = [half[layout.critics + c : layout.critics + 2 * c] for half in halves]
    given = batch.extra["memory"][0], batch.valid[0]
    total, count, priorities = torch.zeros(()), 0, []
    for k in range(4):
        x = torch.tensor(batch.observation[0, k])
        seen, seen_there = (
            run_cell(kind, layout.encoder, row, x, given[0][k], given[1][k], config.burn_in)
            for row in (sees, halves[1, layout.encoder_part])
        )
        errors = []
        for t in range(config.burn_in, 8):
            if not batch.valid[0, k, t]:
                continue
            end = seen_there[t + int(batch.ahead[0, k, t])]
            action = dense(layout.policy.layers, halves[1, layout.policy_part], end).tanh()
            after = torch.stack([dense(layout.critic.layers, row, torch.cat((end, action))) for row in targets]).min()
            goal = batch.reward[0, k, t] + batch.discount[0, k, t] * after
            here = torch.cat((seen[t], torch.tensor(batch.action[0, k, t]) / 2))
            error = goal - torch.cat([dense(layout.critic.layers, row, here) for row in judges])
            total, count = total + float(batch.weight[0, k]) * error.square().sum(), count + 1
            errors.append(float(error.detach().abs().mean()))
        priorities.append(0.9 * max(errors) + 0.1 * float(np.mean(errors)))
    (total / count).backward()
    update = td3.update(batch, [0])
    for found, row in zip(td3._critic_grad, judges, strict=True):
        torch.testing.assert_close(found, row.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(td3._seeing_grad[0, : len(sees)], sees.grad, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(update.priorities[0], priorities, rtol=1e-3)


REMEMBERING = pytest.mark.parametrize(
    "config",
    [
        DQNConfig(memory="gru", **SMALL),
        IQNConfig(memory="lstm", **SMALL),
        TD3Config(memory="gru", policy_delay=1, **SMALL),
        DQNConfig(encoder=Recalling, **SMALL),
        IQNConfig(encoder=RecallingSequences, **SMALL),
        TD3Config(encoder=Recalling, policy_delay=1, **SMALL),
    ],
    ids=lambda config: f"{type(config).__name__}, {config.memory or 'own'}",
)


@REMEMBERING
def test_rows_without_a_transition_teach_nothing(config):
    """What stands in a final row of actions, rewards and states changes no bit."""
    states = []
    for junk in (0, 1):
        learner, batch = config.build(VECTOR, actions_of(config), 1, [3]), filled(config)
        gone = ~batch.valid
        assert gone[..., config.burn_in :].any()
        batch.action[gone] = 2 + junk
        batch.reward[gone] = junk
        behind = gone[..., :-1] & batch.valid[..., 1:]
        batch.extra["memory"][..., 1:, :][batch.valid[..., :-1]] = junk  # rows that carry on from the one before
        assert behind.any()
        learner.update(batch, [0])
        states.append(learner.state.copy())
    np.testing.assert_array_equal(*states)


@REMEMBERING
def test_a_stack_learns_from_sequences_what_each_agent_learns_alone(config):
    actions = actions_of(config)
    stack, batch = config.build(VECTOR, actions, 3, [1, 2, 3]), filled(config, agents=3)
    for _ in range(3):
        stack.update(batch, [0] * 3)
    for agent in range(3):
        alone = config.build(VECTOR, actions, 1, [agent + 1])
        part = batch.map(lambda array, agent=agent: np.ascontiguousarray(array[agent : agent + 1]))
        for _ in range(3):
            alone.update(part, [0])
        np.testing.assert_allclose(alone.state[0], stack.state[agent], rtol=1e-3, atol=1e-5)


@dataclass(frozen=True)
class Kept(DQNConfig):
    """DQN that keeps the batches it gets, in this process."""

    batches: list[Any] = field(default_factory=list, repr=False, compare=False)

    def build(self, *given: Any, **more: Any) -> Any:
        dqn = super().build(*given, **more)
        update = dqn.update

        def keeping(batch: Any, steps: Any) -> Any:
            self.batches.append((copy.deepcopy(batch).agent(0), dqn))
            return update(batch, steps)

        dqn.update = keeping
        return dqn


@KINDS
@pytest.mark.parametrize(
    "world", [partial(TreasureHunt, agents=2, turns=9), partial(MatrixGame, turns=13), partial(Cue, 3)]
)
def test_states_of_a_sequence_computed_again_are_those_that_were_stored(kind, world):
    """While the weights stand still, from the state in its first row on, across the ends of episodes."""
    config = Kept(memory=kind, learning_rate=0.0, n_step=2, **SMALL)
    train(world, config, Settings(engine="serial", steps=300, worlds_per_actor=2, updates_per_step=0.2))
    checked = ends = 0
    for batch, dqn in config.batches[::3]:
        plan, encoder = config._plan(dqn._encoder._space, dqn._action_space), dqn._encoder
        acting = plan.acting(encoder.scale)
        acting.load(dqn.state[0, : plan.size])
        for k in range(4):
            for t in range(8):
                stored = batch.extra["memory"][k, t]
                if t == 0 or not batch.valid[k, t - 1]:
                    state, ends = stored[None], ends + (t > 0)
                    assert t == 0 or not stored.any(), "an episode begins with an empty memory"
                elif batch.valid[k, t]:
                    np.testing.assert_allclose(stored, state[0], rtol=1e-4, atol=1e-5)
                    checked += 1
                _, state = acting.step(encoder.rows(batch.observation[k, t : t + 1]), np.array(state))
    assert checked > 150
    assert ends > 10


def test_a_memory_is_learned_where_episodes_are_shorter_than_the_burn_in():
    """Every sequence holds several episodes, and some lie in the burn-in as wholes."""
    config = DQNConfig(
        memory="gru", memory_size=16, hidden=(16,), batch_size=16, sequence_length=8, burn_in=8, min_rows=100,
        learning_rate=3e-3, target_every=50, epsilon=0.5,
    )  # fmt: skip
    result = train(partial(Cue, 2), config, Settings(engine="serial", steps=2_000, updates_per_step=0.15))
    worlds = [as_world(Cue(2)) for _ in range(50)]
    spaces = worlds[0].observation_spaces[0], worlds[0].action_spaces[0]
    behaviour = config.behaviour(*spaces)
    weights = np.ascontiguousarray(result.agents["agent_0"]["state"][: config.sizes(*spaces).weights])
    behaviour.load(weights, {"epsilon": 0.0})
    assert play_greedily(LoopedWorlds(worlds, [False]), [behaviour], range(50)).mean() == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"n_frames": 4}, "n_frames must be 1 with memory, got 4"),
        ({"memory": "rnn"}, "memory must be 'gru', 'lstm' or None, got 'rnn'"),
        ({"n_step": 256}, "n_step must be an int from 1 to 255 with length > 0, got 256"),
    ],
)
def test_settings_that_contradict_a_memory_are_refused(wrong, error):
    with pytest.raises(SettingError, match=error):
        DQNConfig(**{"memory": "gru", **SMALL, **wrong})


@pytest.mark.parametrize("config", [DQNConfig(network=mlp, **SMALL), IQNConfig(network=mlp, **SMALL)])
def test_memory_is_refused_beside_a_network_that_sees_the_observation(config):
    with pytest.raises(SettingError, match="memory must be None with network, got 'gru'; give an encoder instead"):
        replace(config, memory="gru").sizes(VECTOR, N)


@REMEMBERING
def test_a_behaviour_with_a_memory_cannot_act_without_it(config):
    behaviour = config.behaviour(VECTOR, actions_of(config))
    with pytest.raises(NotReadyError, match="this behaviour has a memory: call act_from with its state"):
        behaviour.act(np.zeros((1, 5), np.float32))


# ---- modules with a memory of their own


def test_a_module_that_is_torchs_gru_learns_as_the_shipped_gru():
    """DQN, over ten updates of rows with ends of episodes and a burn-in, up to rounding."""
    config = DQNConfig(prioritised=True, n_step=2, target_every=4, adam_eps=1e-3, **SMALL)
    shipped, own = replace(config, memory="gru"), replace(config, encoder=TorchGRU)
    assert shipped.replay(VECTOR, N) == own.replay(VECTOR, N)
    one, other = (made.build(VECTOR, N, 1, [3]) for made in (shipped, own))
    (gru, dense_part), module = _parts(shipped), _parts(own)[0]
    n = one.n_weights
    assert (n, gru.size) == (other.n_weights, module.size)
    for part, parameter in zip(gru.parts, module.parameters, strict=True):
        other.state[0, parameter.part] = one.state[0, part]
    other.state[0, gru.size : gru.size + dense_part.size] = one.state[0, gru.size : gru.size + dense_part.size]
    other.state[0, n : 2 * n] = other.state[0, :n]
    other.load()
    for seed in range(10):
        first, second = (dqn.update(filled(shipped, seed=seed), [0]) for dqn in (one, other))
        np.testing.assert_allclose(first.priorities, second.priorities, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(one._grad, other._grad, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(one.state, other.state, rtol=1e-3, atol=1e-5)


def _parts(config: Any) -> Any:
    plan = config._plan(VECTOR, N)
    return plan.first, plan.second


@pytest.mark.parametrize("config", [DQNConfig(**SMALL), IQNConfig(**SMALL), TD3Config(**SMALL)])
def test_a_module_with_a_memory_is_accepted_as_encoder_only(config):
    actions, of_itself = actions_of(config), replace(config, encoder=Recalling)
    of_itself.sizes(VECTOR, actions)
    given = of_itself.replay(VECTOR, actions)
    assert (given.memory, given.length, given.burn_in) == (6, 8, 3)
    assert replace(of_itself, memory="gru").replay(VECTOR, actions).memory == 6 + 8  # both states are kept
    with pytest.raises(SettingError, match=r"network must have no state_size here, got 6: .* as encoder of DQN, IQN"):
        replace(config, network=Recalling).sizes(VECTOR, actions)
    with pytest.raises(SettingError, match="n_frames must be 1 with memory, got 4"):
        replace(of_itself, n_frames=4).replay(VECTOR, actions)
