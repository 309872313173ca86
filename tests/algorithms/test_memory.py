"""Recurrent networks against torch's, and PPO with a memory: what rows hold, and how sequences are computed again."""

import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from support import foreign_networks as foreign

from motet.algorithm import ReaderSettings, stacked_batch
from motet.algorithms import PPOConfig
from motet.algorithms._blocks import DensePlan
from motet.algorithms._own import Seen
from motet.algorithms._plans import chained
from motet.algorithms._recurrent_network import NativeRecurrent, TorchRecurrent
from motet.algorithms._recurrent_plan import RecurrentPlan
from motet.algorithms.source import Source
from motet.arrays import Field
from motet.errors import NotReadyError, SettingError, SpecError
from motet.policies.entries import greedy_policy
from motet.testing import check_algorithm
from motet.testing.network import check_network
from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds import MatrixGame, TreasureHunt

VECTOR, N, BOX = Box(-1, 1, (5,)), Discrete(3), Box(-2, 2, (2,))
SMALL: dict[str, Any] = {
    "memory_size": 8, "hidden": (8,), "batch_size": 2, "length": 6, "sequence_length": 3, "minibatches": 2, "epochs": 2
}  # fmt: skip
CELLS = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}
KINDS = pytest.mark.parametrize("kind", ["gru", "lstm"])


def cell_of(plan: RecurrentPlan, row: torch.Tensor) -> Any:
    """torch's cell with the weights of a row."""
    cell = CELLS[plan.kind](plan.inputs, plan.outputs)
    for weight, part, shape in zip(cell.parameters(), plan.parts, plan.shapes, strict=True):
        weight.data = row[part].view(shape).clone()
    return cell


def stepped(plan: RecurrentPlan, cell: Any, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The state after a row, by torch's cell."""
    n = plan.outputs
    if plan.kind == "gru":
        new: torch.Tensor = cell(x, state)
        return new
    return torch.cat(cell(x, (state[:, :n], state[:, n:])), 1)


def sequences(plan: Any, agents: int = 2, n: int = 3, length: int = 7) -> Any:
    """Rows, stored states and borders of sequences, and weights of each agent."""
    torch.manual_seed(0)
    rows = torch.randn(agents, plan.size) * 0.5
    x = torch.randn(agents, n * length, plan.inputs)
    memory = torch.randn(agents, n, length, plan.state_size)
    begin = torch.rand(agents, n, length) < 0.3
    begin[:, :, 0] = True
    return rows, x, memory, begin


@KINDS
@pytest.mark.parametrize("network_of", [NativeRecurrent, TorchRecurrent])
@pytest.mark.parametrize("learn_from", [0, 3])
def test_sequences_are_torchs_cells_one_after_the_other(kind, network_of, learn_from):
    """Outputs and gradients of weights and inputs, with borders and rows that only prepare the state."""
    plan = RecurrentPlan(kind, 5, 4)
    rows, x, memory, begin = sequences(plan)
    grad, pull = torch.full_like(rows, torch.nan), torch.randn(2, 21, 4)
    network = network_of(plan, rows, grad, inputs=True)
    done = network.unroll(x, memory, begin, learn_from)
    back = network.backward(done, pull.clone()).clone()
    np.testing.assert_array_equal(network.unroll(x, memory, begin, None).out, done.out)
    for agent in range(2):
        cell, seen, outs, state = cell_of(plan, rows[agent]), x[agent].view(3, 7, 5).clone().requires_grad_(), [], None
        for t in range(7):
            stored = memory[agent, :, t]
            state = stored if state is None else torch.where(begin[agent, :, t, None], stored, state)
            state = stepped(plan, cell, seen[:, t], state.detach() if t == learn_from else state)
            outs.append(state[:, :4])
        out = torch.stack(outs, 1)
        torch.testing.assert_close(done.out[agent].view(3, 7, 4), out, rtol=1e-4, atol=1e-5)
        (out * pull[agent].view(3, 7, 4))[:, learn_from:].sum().backward()
        for weight, part, shape in zip(cell.parameters(), plan.parts, plan.shapes, strict=True):
            torch.testing.assert_close(grad[agent, part].view(shape), weight.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(back[agent].view(3, 7, 5), seen.grad, rtol=1e-4, atol=1e-5)


@KINDS
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_a_step_of_an_actor_is_torchs_cell(kind, dtype):
    plan = RecurrentPlan(kind, 5, 8)
    row = np.zeros(plan.size, np.float32)
    rng = np.random.default_rng(0)
    plan.initialise(row, rng)
    x, state = rng.integers(0, 255, (6, 5)).astype(dtype), rng.normal(size=(6, plan.state_size)).astype(np.float32)
    acting = plan.acting(scale=1 / 255)
    acting.load(row)
    out, new = acting.step(x, state)
    cell = cell_of(plan, torch.from_numpy(row))
    with torch.no_grad():
        expected = stepped(plan, cell, torch.from_numpy(x.astype(np.float32) / 255), torch.from_numpy(state))
    np.testing.assert_allclose(new, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(out, new[:, :8])


@KINDS
def test_a_chain_of_layers_with_and_without_memory_unrolls_as_it_steps(kind):
    """Each part takes its columns of the state."""
    plan = chained(
        chained(DensePlan((5, 6)), RecurrentPlan(kind, 6, 4)), chained(RecurrentPlan("gru", 4, 3), DensePlan((3, 2)))
    )
    rows, x, memory, begin = sequences(plan, agents=1)
    out = plan.bind(rows).unroll(x, memory, begin, None).out.view(3, 7, 2).numpy()
    acting, state = plan.acting(), memory[0, :, 0].numpy()
    acting.load(rows[0].numpy())
    for t in range(7):
        state = np.where(begin[0, :, t, None], memory[0, :, t], state)
        found, state = acting.step(x.view(3, 7, 5)[:, t].contiguous().numpy(), state)
        np.testing.assert_allclose(found, out[:, t], rtol=1e-4, atol=1e-5)


# ---- PPO


@pytest.mark.parametrize(
    ("config", "observations", "actions"),
    [
        (PPOConfig(memory="gru", **SMALL), VECTOR, N),
        (PPOConfig(memory="lstm", normalise=True, **SMALL), VECTOR, BOX),
        (PPOConfig(memory="gru", **{**SMALL, "sequence_length": 99, "minibatches": 1}), Dict(a=VECTOR, b=N), N),
        (PPOConfig(memory="lstm", encoder=foreign.mlp_features, **SMALL), VECTOR, N),
        (PPOConfig(memory="gru", **SMALL), Box(0, 255, (14, 12, 3), np.uint8), N),
        (PPOConfig(encoder=foreign.Recalling, **SMALL), VECTOR, N),
        (PPOConfig(encoder=foreign.RecallingSequences, memory="lstm", **SMALL), VECTOR, BOX),
    ],
)  # fmt: skip
def test_ppo_with_a_memory_keeps_the_contract_of_algorithms(config, observations, actions):
    check_algorithm(config, observations, actions, masked=actions is N)


@dataclass(frozen=True)
class Kept(PPOConfig):
    """PPO that keeps the batches it gets, in this process."""

    batches: list[Any] = field(default_factory=list, repr=False, compare=False)

    def build(self, *given: Any, **more: Any) -> Any:
        ppo = super().build(*given, **more)
        update = ppo.update

        def keeping(batch: Any, steps: Any) -> Any:
            self.batches.append((copy.deepcopy(batch).agent(0), ppo))
            return update(batch, steps)

        ppo.update = keeping
        return ppo


def batches_of(world: Any, config: Kept, **settings: Any) -> list[Any]:
    train(world, config, Settings(engine="serial", **settings))
    assert len(config.batches) > 5
    return config.batches


WORLDS = {
    "in turn": partial(TreasureHunt, agents=2, turns=9),
    "all at once": partial(MatrixGame, turns=13),
    "arrays": "gym:CartPole-v1",
}


@KINDS
@pytest.mark.parametrize("world", WORLDS)
def test_states_computed_again_from_the_start_of_an_episode_are_those_that_were_stored(kind, world):
    """While the weights stand still: in all rows, across fragments and the ends of episodes."""
    config = Kept(memory=kind, learning_rate=0.0, **{**SMALL, "length": 12, "sequence_length": 4})
    carried: dict[Any, Any] = {}  # by learner and lane: the state after the last row
    checked = ends = 0
    for batch, ppo in batches_of(WORLDS[world], config, steps=400, worlds_per_actor=2):
        layout, encoder = ppo._layout, ppo._encoder
        acting = layout.encoder.acting(encoder.scale)
        acting.load(ppo.state[0, layout.encoder_part])
        zero = np.zeros((1, layout.state_size), np.float32)
        for i in range(2):
            lane = id(ppo), int(batch.lane[i, 0])
            assert (lane in carried) == (batch.row[i, 0] > 0)
            state = carried.get(lane, zero)
            for t in range(12):
                if not batch.valid[i, t]:
                    state, ends = zero, ends + 1
                    continue
                np.testing.assert_allclose(batch.extra["memory"][i, t], state[0], rtol=1e-4, atol=1e-5)
                _, state = acting.step(encoder.rows(batch.observation[i, t : t + 1]), state)
                checked += 1
            carried[lane] = state
    assert checked > 300 and ends > 10


def test_a_minibatch_of_chunks_is_as_good_as_one_of_whole_fragments_while_the_weights_stand_still():
    """Chunks begin from the stored states, which are then those that a whole fragment goes through."""
    config = Kept(memory="gru", **{**SMALL, "length": 12, "sequence_length": 4, "learning_rate": 0.0})
    batch, ppo = batches_of(WORLDS["arrays"], config, steps=400, worlds_per_actor=2)[3]
    stacked = batch.map(lambda array: np.ascontiguousarray(array[None]))
    ppo._prepare(rows := _fetched(ppo, stacked))
    whole = ppo._see(rows, None).out[:, rows.positions]
    torch.manual_seed(0)
    for part in rows.shuffle(ppo._streams):
        assert part.sequences.begin[:, :, 0].all()
        seen = ppo._see(part, None).out[0]
        found = (part.x[0][:, None] == rows.x[:, rows.positions]).all(2).int().argmax(1)
        torch.testing.assert_close(seen, whole[0, found], rtol=1e-4, atol=1e-5)


def _fetched(ppo: Any, batch: Any) -> Any:
    from motet.algorithms._ppo_learner import _Rows

    rows = _Rows(batch, ppo._encoder, ppo._actions, ppo.config.minibatches, ppo.config._chunk, ppo._device)
    rows.fetch()
    return rows


def test_values_do_not_depend_on_the_previous_episode():
    """What was seen in the episode before changes nothing in the next one; what was seen in it, does."""
    config = PPOConfig(memory="gru", **SMALL)
    ppo = config.build(VECTOR, N, 1, [1])
    batch = stacked_batch(VECTOR, N, config.replay(VECTOR, N), 1)
    rng = np.random.default_rng(0)
    batch.observation[:] = rng.normal(size=batch.observation.shape)
    batch.extra["memory"][:] = rng.normal(size=batch.extra["memory"].shape)
    batch.valid[0, 0, 2] = False  # the final row: row 3 is the first one of an episode

    def seen() -> Any:
        return ppo._see(_fetched(ppo, batch), None).out.view(2, 7, -1)[0].clone()

    before = seen()
    batch.observation[0, 0, 1] += 1
    after = seen()
    changed = (before != after).any(1).tolist()
    assert changed == [False, True, True, False, False, False, False]
    batch.extra["memory"][0, 0, 3] += 1
    assert (after != seen()).any(1).tolist() == [False, False, False, True, True, True, True]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"n_frames": 4}, "n_frames must be 1 with memory, got 4; if the world suggests it, set n_frames to 1"),
        ({"sequence_length": 4}, "sequence_length must divide length 6, got 4"),
        ({"minibatches": 3}, r"minibatches must divide the 4 sequences .* length 6 / sequence_length 3\), got 3"),
        ({"memory": "rnn"}, "memory must be 'gru', 'lstm' or None, got 'rnn'"),
    ],
)
def test_settings_that_contradict_a_memory_are_refused(wrong, error):
    with pytest.raises(SettingError, match=error):
        PPOConfig(**{"memory": "gru", **SMALL, **wrong})


def test_memory_is_refused_beside_networks_that_see_the_observation():
    with pytest.raises(SettingError, match="memory must be None with network or critic, got 'gru'"):
        PPOConfig(memory="gru", network=foreign.mlp, **SMALL).sizes(VECTOR, N)


def test_the_field_memory_is_reserved():
    assert replace(ReaderSettings(4, memory=3), batch_size=5).extra == {"memory": Field((3,))}
    with pytest.raises(SettingError, match="extra must not have a field named memory"):
        ReaderSettings(4, extra={"memory": Field()})


def test_a_behaviour_with_a_memory_cannot_act_without_it():
    config = PPOConfig(memory="gru", **SMALL)
    with pytest.raises(NotReadyError, match="call act_from with its state"):
        config.behaviour(VECTOR, N).act(np.zeros((1, 5), np.float32))


@KINDS
def test_a_policy_remembers_from_step_to_step_and_forgets_at_a_reset(kind):
    config = PPOConfig(memory=kind, **SMALL)
    policy = greedy_policy(config, config.build(VECTOR, BOX, 1, [1]).weights()[0], VECTOR, BOX)
    x = np.linspace(-1, 1, 5, dtype=np.float32)

    def played() -> list[Any]:
        policy.reset(0)
        return [policy.act(x).tolist() for _ in range(3)]

    first = played()
    assert first[0] != first[1] != first[2] and played() == first


# ---- modules with a memory of their own


def updated(config: Any, batch: Any) -> Any:
    """Parameters of the encoder, policy and critic after an update with some rows."""
    ppo = config.build(VECTOR, N, 1, [1])
    own = stacked_batch(VECTOR, N, config.replay(VECTOR, N), 1)
    for name in ("observation", "action", "reward", "discount", "valid"):
        getattr(own, name)[:] = batch[name]
    own.extra["log_prob"][:] = batch["log_prob"]
    metrics = {name: float(value[0]) for name, value in ppo.update(own, [0]).metrics.items()}
    return ppo.state[0, : ppo._layout.learned.stop].copy(), metrics


def test_a_module_that_ignores_its_state_learns_as_one_without():
    """One minibatch, in which the order of rows does not matter."""
    rng = np.random.default_rng(0)
    batch = {
        "observation": rng.normal(size=(1, 2, 7, 5)), "action": rng.integers(3, size=(1, 2, 6)),
        "reward": rng.normal(size=(1, 2, 6)), "discount": np.full((1, 2, 6), 0.9), "valid": rng.random((1, 2, 6)) < 0.8,
        "log_prob": np.full((1, 2, 6), -1.1),
    }  # fmt: skip
    config = PPOConfig(**{**SMALL, "minibatches": 1, "epochs": 1})
    with_state, without = (replace(config, encoder=made) for made in (foreign.Forgetful, foreign.WithoutState))
    (one, measured), (other, expected) = (updated(made, batch) for made in (with_state, without))
    np.testing.assert_allclose(one, other, atol=1e-6)
    for name, value in expected.items():
        assert measured[name] == pytest.approx(value, abs=1e-5), name


@pytest.mark.parametrize("learn_from", [None, 0, 3])
def test_a_modules_own_unroll_is_what_its_steps_are(learn_from):
    stepping, unrolling = (
        Seen(VECTOR, 1).encoder(Source.of(made, "encoder")) for made in (foreign.Recalling, foreign.RecallingSequences)
    )
    rows, x, memory, begin = sequences(stepping, agents=2)
    found = []
    for plan in (stepping, unrolling):
        grad = torch.full_like(rows, torch.nan)
        network = plan.bind(rows, grad, inputs=True)
        done = network.unroll(x, memory, begin, learn_from)
        back = None if learn_from is None else network.backward(done, torch.ones_like(done.out))
        found.append((done.out, back, torch.cat([grad[:, one.part] for one in plan.parameters], 1)))
    for one, other in zip(*found, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, equal_nan=True)
    if learn_from:
        assert not found[0][1].view(2, 3, 7, 5)[:, :, :learn_from].any()


def test_a_module_steps_in_an_actor_as_it_unrolls_in_a_learner():
    plan = Seen(VECTOR, 1).encoder(Source.of(foreign.Recalling, "encoder"))
    rows, x, memory, begin = sequences(plan, agents=1)
    out = plan.bind(rows).unroll(x, memory, begin, None).out.view(3, 7, 7).numpy()
    acting, state = plan.acting(), memory[0, :, 0].numpy()
    acting.load(rows[0].numpy())
    for t in range(7):
        state = np.where(begin[0, :, t, None], memory[0, :, t], state)
        given = state.copy()
        found, new = acting.step(x.view(3, 7, 5)[:, t].contiguous().numpy(), state)
        np.testing.assert_allclose(found, out[:, t], rtol=1e-4, atol=1e-5)
        assert np.array_equal(state, given) and not np.shares_memory(new, state)
        state = new


class Wrong(foreign.Recalling):
    """A module with memory that breaks a rule."""

    def __init__(self, space: Any, how: str = "") -> None:
        super().__init__(space)
        self.how, self.kept = how, None
        if how == "size":
            self.state_size = "6"  # type: ignore[assignment]

    def forward(self, seen: Any, state: Any) -> Any:
        out, new = super().forward(seen, state)
        if self.how == "alone":
            return out
        if self.how == "shape":
            return out, new[:, :5]
        if self.how == "dtype":
            return out, new.double()
        if self.how == "writes":
            state += 1
        if self.how == "keeps":
            self.kept = new if self.kept is None or len(self.kept) != len(new) else self.kept + new
            return out, self.kept
        if self.how == "rows":
            return out, new + new.mean(0)
        return out, new


class WrongSequences(Wrong):
    """It does not begin where an episode begins."""

    def unroll(self, seen: Any, memory: Any, begin: Any) -> Any:
        return foreign.RecallingSequences.unroll(self, seen, memory, torch.zeros_like(begin))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (partial(Wrong, how="size"), "state_size must be an int >= 0, got '6'"),
        (partial(Wrong, how="alone"), r"must return \(outputs, new state\), got a tensor"),
        (partial(Wrong, how="shape"), r"must return a new state float32 \[batch, 6\], got \[2, 5\]"),
        (partial(Wrong, how="dtype"), "must return a new state float32 .*float64"),
        (partial(Wrong, how="writes"), "must not write to its state"),
        (partial(Wrong, how="keeps"), "must keep nothing from call to call"),
        (partial(Wrong, how="rows"), "got outputs or states that depend on other rows"),
        (WrongSequences, "unroll of encoder must return what forward returns row by row"),
    ],
)
def test_modules_with_memory_that_break_a_rule_are_refused(made, error):
    with pytest.raises(SpecError, match=error):
        check_network(made, VECTOR)


def test_modules_with_memory_are_accepted_where_they_may_be():
    check_network(foreign.Recalling, VECTOR)
    check_network(foreign.RecallingSequences, VECTOR)
    error = "must have no state_size here, got 6: a module with a memory of its own is only valid as encoder of DQN"
    config = PPOConfig(critic=foreign.Recalling, **SMALL)
    with pytest.raises(SettingError, match=error):
        config.sizes(VECTOR, N)
    with pytest.raises(SettingError, match="n_frames must be 1 with memory, got 2"):
        PPOConfig(encoder=foreign.Recalling, n_frames=2, **SMALL).replay(VECTOR, N)


def test_a_module_with_memory_trains_in_processes():
    config = PPOConfig(encoder=foreign.Recalling, **SMALL)
    settings = Settings(steps=200, worlds_per_actor=2, slack=0)
    results = [train(WORLDS["arrays"], config, replace(settings, engine=engine, slack=slack))
               for engine, slack in (("serial", None), ("processes", 0))]  # fmt: skip
    states = [result.agents["agent_0"]["state"] for result in results]
    np.testing.assert_array_equal(*states)
