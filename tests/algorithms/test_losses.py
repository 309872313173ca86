"""Algorithms that are written as a loss over one agent's batch."""

import functools
import inspect
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from support import foreign_losses as foreign
from support import foreign_networks

from motet.algorithm import stacked_batch
from motet.algorithms import DQNConfig
from motet.algorithms._loss_learner import LoopedLosses, StackedLosses
from motet.algorithms.loss import DiagonalGaussian, Learned, Loss, LossConfig, Net, advantages
from motet.errors import SettingError
from motet.evaluation.evaluate import evaluate
from motet.runs.config import describe, rebuild, refuse_untrusted
from motet.schedule import Linear
from motet.testing import check_algorithm
from motet.training.league import League
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import MatrixGame

VECTOR, N, LATE, BOX = Box(-1, 1, (5,)), Discrete(3), Discrete(4, start=5), Box(-2, 2, (2,))
NEST = Dict(picture=Box(0, 255, (14, 12, 3), np.uint8), vector=Box(-1, 1, (3,), np.float64), room=Discrete(4))
VALUES: dict[str, Any] = {"batch_size": 8, "min_rows": 8}
ONCE: dict[str, Any] = {"batch_size": 3, "length": 5}


@dataclass(frozen=True)
class GaussianA2C(foreign.A2C):
    """A2C on a box, with observations in a dict."""

    def networks(self, observations: Any, actions: Any) -> Any:
        outputs = 2 * math.prod(actions.shape)
        make = foreign_networks.PictureAndVector
        return {"policy": Net(make, observations, outputs), "value": Net(make, observations, outputs=1)}

    def loss(self, nets: Any, targets: Any, batch: Any) -> Loss:
        values = nets.value(batch.observation)[..., 0]
        mean, log_std = nets.policy(batch.observation)[:, :-1].chunk(2, -1)
        chosen = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
        logs = chosen.log_prob(batch.extra["unclipped"]).sum(-1)
        gain = advantages(batch, values.detach(), 0.9)
        return Loss((batch.valid * (0.5 * (values[:, :-1] - gain) ** 2 - logs * gain)).mean())

    def acting(self, actions: Any) -> Any:
        return DiagonalGaussian(actions)


@dataclass(frozen=True)
class Drawing(foreign.MyDQN):
    """Draws from the global streams of torch and numpy."""

    def loss(self, nets: Any, targets: Any, batch: Any) -> Loss:
        found = super().loss(nets, targets, batch)
        drawn = float(torch.rand(())) + float(np.random.rand())
        DRAWN.append(drawn)
        return found._replace(loss=found.loss * drawn)


DRAWN: list[float] = []


CASES: dict[str, tuple[LossConfig, Any, Any]] = {
    "dqn": (foreign.MyDQN(**VALUES), VECTOR, LATE),
    "dqn, prioritised": (foreign.MyDQN(**VALUES, prioritised=True, n_frames=2, n_step=3), VECTOR, N),
    "dqn, nest": (foreign.MyDQN(network=foreign_networks.PictureAndVector, **VALUES), NEST, N),
    "dqn, dropout": (foreign.MyDQN(network=foreign_networks.Dropped, **VALUES), VECTOR, N),
    "dqn that draws": (Drawing(**VALUES), VECTOR, N),
    "sac": (foreign.DiscreteSAC(**VALUES), VECTOR, N),
    "a2c": (foreign.A2C(**ONCE), VECTOR, LATE),
    "a2c, box": (GaussianA2C(**ONCE), NEST, BOX),
    "ddpg": (foreign.DDPG(**VALUES), VECTOR, BOX),
}
STACKED = ("dqn", "dqn, prioritised", "sac", "a2c", "ddpg")


@pytest.mark.parametrize("name", ["MyDQN", "DiscreteSAC", "A2C", "DDPG"])
def test_foreign_algorithms_have_forty_lines(name: str) -> None:
    assert len(inspect.getsource(getattr(foreign, name)).splitlines()) <= 40


@pytest.mark.parametrize("name", CASES)
def test_losses_keep_the_contract_of_algorithms(name: str) -> None:
    """Bit for bit after a restart, stacked or alone, whatever the other agents have learned."""
    check_algorithm(*CASES[name])


def test_losses_respect_masks() -> None:
    check_algorithm(CASES["dqn"][0], VECTOR, LATE, masked=True)
    check_algorithm(CASES["a2c"][0], VECTOR, LATE, masked=True)
    with pytest.raises(SettingError, match="acting must be EpsilonGreedy or Categorical in a world with action"):
        CASES["ddpg"][0].replay(VECTOR, BOX, masked=True)


def filled(batch: Any, actions: Any, rng: np.random.Generator) -> Any:
    for array in batch.arrays():
        array[...] = rng.normal(size=array.shape) if array.dtype.kind == "f" else rng.integers(0, 2, array.shape)
    if isinstance(actions, Box):
        batch.action[...] = actions.low + (actions.high - actions.low) * rng.random(batch.action.shape)
    else:
        batch.action[...] = actions.start + rng.integers(0, actions.n, batch.action.shape)
    batch.discount[...] = np.where(rng.random(batch.discount.shape) < 0.2, 0, 0.9)
    return batch


# ---- oracles


@pytest.mark.parametrize("agents", [1, 5])
def test_a_foreign_dqn_learns_what_the_shipped_one_does(agents: int) -> None:
    same: dict[str, Any] = {**VALUES, "prioritised": True, "target_every": 7, "learning_rate": Linear(1e-3, 1e-4, 90)}
    shipped_config = DQNConfig(hidden=(16, 12), **same)
    own_config = foreign.MyDQN(network="mlp(hidden=(16, 12))", **same)
    shipped, own = (one.build(VECTOR, N, agents, list(range(agents))) for one in (shipped_config, own_config))
    part = own._layout.parts["q"]

    def as_module(row: np.ndarray) -> np.ndarray:
        found, at = np.zeros(part.plan.size, np.float32), 0
        for parameter in part.plan.parameters:
            n = math.prod(parameter.shape)
            found[parameter.part] = row[at : at + n]
            at += n
        return found

    def parts(learner: Any, row: np.ndarray) -> np.ndarray:
        """Weights, targets and both moments."""
        return row.reshape(4, learner.n_weights)

    for before, after in zip(shipped.state, own.state, strict=True):
        parts(own, after)[:] = [as_module(one) for one in parts(shipped, before)]
    batch, rng = stacked_batch(VECTOR, N, shipped_config.replay(VECTOR, N), agents), np.random.default_rng(0)
    for step in range(100):
        filled(batch, N, rng)
        one, other = (learner.update(batch, [step] * agents) for learner in (shipped, own))
        np.testing.assert_allclose(one.priorities, other.priorities, rtol=5e-3, atol=1e-3)
        for metric in ("loss", "mean_q", "grad_norm"):
            np.testing.assert_allclose(one.metrics[metric], other.metrics[metric], rtol=5e-3, atol=1e-3)
    for before, after in zip(shipped.state, own.state, strict=True):
        for a, b in zip(parts(shipped, before), parts(own, after), strict=True):
            np.testing.assert_allclose(as_module(a), b, rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize("name", STACKED)
def test_stacked_losses_are_those_of_a_loop(name: str) -> None:
    config, observations, actions = CASES[name]
    stacked, alone = config.build(observations, actions, 5, list(range(5))), []
    assert isinstance(stacked._losses, StackedLosses)
    for agent in range(5):
        alone.append(config.build(observations, actions, 1, [agent]))
        assert isinstance(alone[-1]._losses, LoopedLosses)
    batch, rng = stacked_batch(observations, actions, config.replay(observations, actions), 5), np.random.default_rng(0)
    single = stacked_batch(observations, actions, config.replay(observations, actions), 1)
    for step in range(20):
        filled(batch, actions, rng)
        together = stacked.update(batch, [100 * agent + step for agent in range(5)])
        for agent, learner in enumerate(alone):
            for to, array in zip(single.arrays(), batch.arrays(), strict=True):
                to[0] = array[agent]
            update = learner.update(single, [100 * agent + step])
            for metric, value in update.metrics.items():
                np.testing.assert_allclose(together.metrics[metric][agent], value[0], rtol=1e-3, atol=1e-4)
    for agent, learner in enumerate(alone):
        np.testing.assert_allclose(stacked.state[agent], learner.state[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["dqn that draws", "dqn, dropout", "dqn, nest"])
def test_losses_that_cannot_be_stacked_run_in_a_loop(name: str) -> None:
    config, observations, actions = CASES[name]
    assert isinstance(config.build(observations, actions, 4, list(range(4)))._losses, LoopedLosses)
    assert isinstance(DrawingByNumpy(**VALUES).build(VECTOR, N, 4, list(range(4)))._losses, LoopedLosses)


@pytest.mark.parametrize("name", ["dqn that draws", "dqn, dropout"])
def test_losses_draw_from_the_agents_streams(name: str) -> None:
    config, observations, actions = CASES[name]
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)
        before = torch.get_rng_state()
        learner = config.build(observations, actions, 2, [1, 2])
        batch = stacked_batch(observations, actions, config.replay(observations, actions), 2)
        learner.update(filled(batch, actions, np.random.default_rng(0)), [0, 0])
        states.append(learner.state)
        assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(*states)


@pytest.mark.parametrize("agents", [1, 3])
def test_each_update_of_each_agent_draws_other_numbers(agents: int) -> None:
    config = Drawing(**VALUES)
    learner = config.build(VECTOR, N, agents, list(range(agents)))
    batch = filled(stacked_batch(VECTOR, N, config.replay(VECTOR, N), agents), N, np.random.default_rng(0))
    DRAWN.clear()
    for _ in range(3):
        learner.update(batch, [0] * agents)
    assert len(set(DRAWN)) == len(DRAWN) == 3 * agents


@dataclass(frozen=True)
class DrawingByNumpy(foreign.MyDQN):
    """Draws what neither ``vmap`` nor a comparison of the results notices."""

    def loss(self, nets: Any, targets: Any, batch: Any) -> Loss:
        found = super().loss(nets, targets, batch)
        return found._replace(loss=found.loss + 1e-9 * float(np.random.rand()))


@dataclass(frozen=True)
class Climbing(foreign.MyDQN):
    """A policy that climbs a critic, which does not learn from that."""

    def networks(self, observations: Any, actions: Any) -> Any:
        return {
            "policy": Net("mlp(hidden=(4,))", observations, actions.n),
            "critic": Net("mlp(hidden=(4,))", observations, 1, actions=actions.n),
        }

    def loss(self, nets: Any, targets: Any, batch: Any) -> Loss:
        return Loss(-nets.critic.frozen(batch.observation, nets.policy(batch.observation)).mean())


@pytest.mark.parametrize("agents", [1, 4])
def test_a_frozen_network_passes_gradients_on_and_does_not_learn(agents: int) -> None:
    config = Climbing(**VALUES)
    learner = config.build(VECTOR, N, agents, list(range(agents)))
    assert isinstance(learner._losses, StackedLosses) == (agents == 4)
    batch = filled(stacked_batch(VECTOR, N, config.replay(VECTOR, N), agents), N, np.random.default_rng(0))
    before = learner.state.copy()
    learner.update(batch, [0] * agents)
    parts = learner._layout.parts
    assert np.array_equal(before[:, parts["critic"].online], learner.state[:, parts["critic"].online])
    assert np.all((before != learner.state)[:, parts["policy"].online].any(1))


def test_each_network_has_its_own_rates_clipping_and_targets() -> None:
    @dataclass(frozen=True)
    class Two(LossConfig):
        learning_rate: Any = 1e-2

        def networks(self, observations: Any, actions: Any) -> Any:
            return {
                "a": Net("mlp(hidden=(4,))", observations, 3),
                "b": Net("mlp(hidden=(4,))", observations, 1, learning_rate=0.0, target_every=3),
                "c": Learned((1.0, 2.0), learning_rate=Linear(1e-3, 0.0, 10)),
                "d": Net("mlp(hidden=(4,))", observations, 1, max_grad_norm=1e-9, target=False),
            }

        def loss(self, nets: Any, targets: Any, batch: Any) -> Loss:
            assert not hasattr(targets, "c") and not hasattr(targets, "d")
            x = batch.observation
            return Loss(nets.a(x).mean() + nets.b(x).mean() + nets.c.sum() + nets.d(x).mean() + targets.b(x).mean())

        def acting(self, actions: Any) -> Any:
            return foreign.Categorical(actions)

    config = Two(**VALUES, target_every=2)
    learner = config.build(VECTOR, N, 1, [0])
    parts = learner._layout.parts
    batch = filled(stacked_batch(VECTOR, N, config.replay(VECTOR, N), 1), N, np.random.default_rng(0))
    for done in range(1, 4):
        before = learner.state[0].copy()
        learner.update(batch, [5])
        after = learner.state[0]
        moved = {name: np.abs(after[part.online] - before[part.online]).max() for name, part in parts.items()}
        if done == 1:
            assert moved["a"] == pytest.approx(1e-2, rel=1e-2)
            assert moved["c"] == pytest.approx(5e-4, rel=1e-2), "half of a schedule"
            assert 0 < moved["d"] < 1e-2, "clipped to less than Adam's epsilon"
        assert moved["b"] == 0
        assert np.array_equal(after[parts["a"].online], after[parts["a"].target]) == (done == 2)
    assert config.sizes(VECTOR, N).weights == parts["a"].plan.size


# ---- what a loss sees


@dataclass(frozen=True)
class Seeing(foreign.MyDQN):
    """Keeps its last batch."""

    draws = {"tau": 4}  # noqa: RUF012
    normal_draws = {"noise": 2}  # noqa: RUF012

    def loss(self, nets: Any, targets: Any, batch: Any) -> Loss:
        Seeing.last = batch  # type: ignore[attr-defined]
        return super().loss(nets, targets, batch)


def test_a_loss_sees_its_batch() -> None:
    config = Seeing(network=foreign_networks.PictureAndVector, **VALUES, epsilon=Linear(1, 0, 10))
    learner = config.build(NEST, LATE, 1, [0])
    batch = filled(stacked_batch(NEST, LATE, config.replay(NEST, LATE, masked=True), 1), LATE, np.random.default_rng(0))
    batch.observation["picture"][:] = 51
    learner.update(batch, [5])
    seen: Any = Seeing.last  # type: ignore[attr-defined]
    assert seen.observation["picture"].shape == (8, 14, 12, 3)
    torch.testing.assert_close(seen.observation["picture"], torch.full((8, 14, 12, 3), 0.2))
    assert seen.observation["room"].dtype == torch.int64
    assert seen.action.tolist() == (batch.action[0] - 5).tolist()
    assert seen.next_mask.tolist() == batch.next_extra["mask"][0].tolist()
    assert seen.weight.tolist() == [1] * 8 and seen.valid.all()
    assert seen.draws["tau"].shape == (8, 4) and 0 <= seen.draws["tau"].min() <= seen.draws["tau"].max() < 1
    assert seen.draws["noise"].shape == (8, 2) and seen.draws["noise"].min() < 0
    assert seen.settings["epsilon"].item() == 0.5


def test_a_loss_sees_box_actions_as_vectors() -> None:
    @dataclass(frozen=True)
    class SeeingBox(foreign.DDPG):
        def loss(self, nets: Any, targets: Any, batch: Any) -> Loss:
            Seeing.last = batch  # type: ignore[attr-defined]
            return super().loss(nets, targets, batch)

    space = Box(np.array([0, -2], np.float32), np.array([10, 2], np.float32))
    config = SeeingBox(**VALUES)
    batch = stacked_batch(VECTOR, space, config.replay(VECTOR, space), 1)
    batch.action[:] = [[[10, -1]]]
    config.build(VECTOR, space, 1, [0]).update(batch, [0])
    assert Seeing.last.action[0].tolist() == [1, -0.5]  # type: ignore[attr-defined]


def test_advantages_end_where_no_transition_starts() -> None:
    batch: Any = type("Some", (), {})()
    batch.reward, batch.discount = torch.ones(1, 4), torch.full((1, 4), 0.5)
    batch.valid = torch.tensor([[True, True, False, True]])
    values = torch.tensor([[0.0, 0.0, 8.0, 0.0, 2.0]])
    found = advantages(batch, values, 1.0)
    assert found[0, 3] == 2 and found[0, 1] == 5 and found[0, 0] == 1 + 0.5 * 5


# ---- refusals


def broken(**methods: Any) -> Any:
    made = type("Broken", (foreign.MyDQN,), methods)
    return dataclass(frozen=True)(made)(**VALUES)


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ({"networks": lambda self, o, a: {}}, "networks must return a dict of Net and Learned by name, got {}"),
        (
            {"networks": lambda self, o, a: {"a": 3}},
            "networks must return a dict of Net and Learned by name, got 'a': 3",
        ),
        ({"networks": lambda self, o, a: {"a": Learned(0.0)}}, "networks must return first the network that acts"),
        ({"networks": lambda self, o, a: {"a": Net("mlp", o, 1, actions=2)}}, "which takes an observation alone"),
        (
            {"networks": lambda self, o, a: {"a": Net("mlp", o, 2)}},
            "outputs of 'a', which acts, must be at least 3, got 2",
        ),
        (
            {"networks": lambda self, o, a: {"a": Net("m", o, 3)}},
            "source must be a function that makes a torch.nn.Module",
        ),
        (
            {"networks": lambda self, o, a: {"q": Net(lambda s, n: torch.nn.Linear(5, 4), o, 3)}},
            r"network q must return a tensor \[batch, 3\], got \[3, 4\]",
        ),
        ({"loss": lambda self, n, t, b: 3}, "loss must return .* with a scalar tensor, got a int"),
        ({"loss": lambda self, n, t, b: Loss(n.q(b.observation))}, r"with a scalar tensor, got \[8, 3\]"),
        ({"loss": lambda self, n, t, b: Loss(b.reward.mean())}, "loss must depend on the networks"),
        ({"loss": lambda self, n, t, b: n.p}, "loss of Broken raised AttributeError: .*no attribute 'p'"),
        (
            {"loss": lambda self, n, t, b: Loss(n.q(b.observation).mean(), b.reward[:2])},
            r"priority must have one value for each row, shape \[8\], got \[2\]",
        ),
        (
            {"loss": lambda self, n, t, b: Loss(n.q(b.observation).mean(), metrics={"r": b.reward})},
            r"the metric r must be a scalar, got \[8\]",
        ),
    ],
)
def test_losses_that_break_a_rule_are_refused_before_the_run(methods: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        broken(**methods).sizes(VECTOR, N)


def test_contradictory_settings_are_refused() -> None:
    class Plain(foreign.MyDQN):
        more: int = 3

    with pytest.raises(SettingError, match=r"Plain must be decorated with @dataclass\(frozen=True\)"):
        Plain()
    with pytest.raises(SettingError, match="length must be an int >= 1 with once=True, got 0"):
        foreign.A2C(length=0)
    with pytest.raises(SettingError, match="length must be 0 with once=False, got 4"):
        foreign.MyDQN(length=4)
    with pytest.raises(SettingError, match="priority must be given with prioritised=True"):
        broken(loss=lambda self, n, t, b: Loss(n.q(b.observation).mean())).__class__(**VALUES, prioritised=True).sizes(
            VECTOR, N
        )
    with pytest.raises(SettingError, match="learning_rate must be"):
        Net("mlp", VECTOR, 1, learning_rate=-1.0)
    with pytest.raises(SettingError, match="initial must be numbers"):
        Learned("much")
    with pytest.raises(NotImplementedError, match=r"LossConfig must have a method acting"):
        LossConfig().replay(VECTOR, N)
    with pytest.raises(SettingError, match="EpsilonGreedy needs a Discrete action space"):
        foreign.MyDQN(**VALUES).replay(VECTOR, MultiDiscrete([2, 3]))


# ---- in runs


def test_a_run_with_losses_is_evaluated_and_resumed(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    algorithm = {
        "player_0": foreign.DiscreteSAC(**VALUES),
        "player_1": foreign.MyDQN(network="mlp(hidden=(8,))", **VALUES),
    }
    run = tmp_path / "run"
    train(MatrixGame, algorithm, Settings(engine="serial", steps=60), run=run)
    assert evaluate(MatrixGame, str(run), episodes=1)
    assert resume(run, steps=20).steps == 80


def test_losses_learn_in_a_league() -> None:
    league = League(anchors=(), snapshot_every=50, review_every=50)
    settings = Settings(engine="serial", steps=300, self_play=True, league=league)
    result = train(functools.partial(MatrixGame, turns=5), foreign.MyDQN(**VALUES), settings)
    assert result.updates["player"] > 50


def test_a_config_survives_files_and_needs_trust() -> None:
    config = foreign.MyDQN(network=functools.partial(foreign_networks.mlp, width=8), epsilon=0.2)
    assert rebuild(describe(config), trust=True) == config
    for refuse in (rebuild, refuse_untrusted):
        with pytest.raises(SettingError, match="is not part of motet"):
            refuse(describe(config))
    assert replace(config, epsilon=0.1) != config
