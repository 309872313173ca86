"""Networks of users in the shipped algorithms."""

import functools
import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from support import foreign_networks as foreign
from torch import nn

from motet.algorithm import stacked_batch
from motet.algorithms import DQNConfig, IQNConfig, PPOConfig, TD3Config
from motet.algorithms._module_network import LoopedModules, StackedModules
from motet.algorithms._own import Seen
from motet.algorithms.source import Source
from motet.cli import main
from motet.errors import SettingError, SpecError
from motet.evaluation.evaluate import EvaluationSettings, evaluate
from motet.runs.config import describe, rebuild, refuse_untrusted
from motet.testing import check_algorithm
from motet.testing.network import check_network
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import MatrixGame

VECTOR, ENTITIES, N, BOX = Box(-1, 1, (5,)), Box(-1, 1, (8, 4)), Discrete(3), Box(-2, 2, (2,))
NEST = Dict(picture=Box(0, 255, (14, 12, 3), np.uint8), vector=Box(-1, 1, (3,), np.float64), room=Discrete(4))
VALUES: dict[str, Any] = {"batch_size": 8, "min_rows": 8}
PPO: dict[str, Any] = {"batch_size": 2, "length": 6, "minibatches": 3, "epochs": 2}


@pytest.mark.parametrize(
    ("config", "observations", "actions"),
    [
        (DQNConfig(network=foreign.attention, dueling=True, **VALUES), ENTITIES, N),
        (DQNConfig(network=foreign.PictureAndVector, **VALUES), NEST, N),
        (DQNConfig(encoder=foreign.PictureAndVector, **VALUES), NEST, N),
        (DQNConfig(network=foreign.mlp, n_frames=3, prioritised=True, **VALUES), VECTOR, N),
        (DQNConfig(network=foreign.Dropped, **VALUES), VECTOR, N),
        (IQNConfig(network=foreign.Quantiles, **VALUES), VECTOR, N),
        (IQNConfig(network=foreign.PictureAndVector, hidden=(16,), head=(8,), **VALUES), NEST, N),
        (IQNConfig(encoder=foreign.PictureAndVector, **VALUES), NEST, N),
        (PPOConfig(network=foreign.attention, critic=foreign.attention, **PPO), ENTITIES, N),
        (PPOConfig(network=foreign.mlp, normalise=True, **PPO), VECTOR, BOX),
        (PPOConfig(encoder=foreign.PictureAndVector, **PPO), NEST, BOX),
        (PPOConfig(critic=foreign.Dropped, **PPO), VECTOR, N),
        (TD3Config(network=foreign.mlp, critic=foreign.ActionValue, **VALUES), VECTOR, BOX),
        (TD3Config(encoder=foreign.PictureAndVector, **VALUES), NEST, BOX),
        (TD3Config(network=foreign.Dropped, policy_delay=3, **VALUES), VECTOR, BOX),
    ],
)
def test_foreign_networks_keep_the_contract_of_algorithms(config: Any, observations: Any, actions: Any) -> None:
    """Bit for bit after a restart, stacked or alone, whatever the other agents have learned."""
    check_algorithm(config, observations, actions)


# ---- the same function as a module


def module_of(plan: Any) -> nn.Module:
    layers: list[nn.Module] = []
    for n_in, n_out in zip(plan.sizes, plan.sizes[1:], strict=False):
        layers += [nn.Linear(n_in, n_out), nn.ReLU() if plan.activation == "relu" else nn.Tanh()]
    return nn.Sequential(*(layers if plan.activate_last else layers[:-1]))


class Joined(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, seen: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.cat([seen, action], 1))


def moved(shipped: Any, module: Any, row: np.ndarray, into: np.ndarray) -> None:
    """Copy the weights of a shipped plan's row into the row of the same module."""
    at = 0
    for parameter in module.parameters:
        n = math.prod(parameter.shape)
        into[parameter.part] = row[at : at + n]
        at += n
    assert at == shipped.size


def unpadded(module: Any, row: np.ndarray) -> np.ndarray:
    return np.concatenate([row[parameter.part] for parameter in module.parameters])


CASES: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "dqn": (DQNConfig(hidden=(16, 12), dueling=True, prioritised=True, target_every=7, **VALUES), N, ("network",)),
    "iqn": (IQNConfig(hidden=(16, 12), target_every=7, **VALUES), N, ("network",)),
    "ppo": (PPOConfig(hidden=(16, 12), **PPO), N, ("network", "critic")),
    "td3": (TD3Config(hidden=(16, 12), **VALUES), BOX, ("network", "critic")),
}


def parts(config: Any, actions: Any) -> list[tuple[Any, list[slice]]]:
    """Each network of an algorithm with the parts of the row that hold it: its weights and its targets."""
    if isinstance(config, (DQNConfig, IQNConfig)):
        plan: Any = config._plan(VECTOR, actions)
        n = config.sizes(VECTOR, actions).weights
        plan = getattr(plan, "trunk", plan)
        return [(plan, [slice(first, first + plan.size) for first in (0, n)])]
    from motet.algorithms.ppo import PPOLayout
    from motet.algorithms.td3 import TD3Layout

    if isinstance(config, PPOConfig):
        layout: Any = PPOLayout.of(config, VECTOR, actions)
        return [(layout.policy, [layout.policy_part]), (layout.critic, [layout.critic_part])]
    layout = TD3Layout.of(config, VECTOR, actions)
    critics = [half * layout.half + layout.critics + i * layout.size for half in (0, 1) for i in (0, 1)]
    policy = [slice(first + layout.policy_part.start, first + layout.policy_part.stop) for first in (0, layout.half)]
    return [(layout.policy, policy), (layout.critic, [slice(at, at + layout.critic.size) for at in critics])]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("agents", [1, 5])
def test_shipped_networks_given_as_modules_learn_the_same(name: str, agents: int) -> None:
    config, actions, settings = CASES[name]
    theirs = parts(config, actions)
    makers = {
        setting: functools.partial(lambda space, outputs, plan: module_of(plan), plan=plan)
        for setting, (plan, _) in zip(settings, theirs, strict=True)
    }
    if name == "td3":
        makers["critic"] = functools.partial(lambda space, outputs, plan: Joined(module_of(plan)), plan=theirs[1][0])
    own_config = replace(config, **makers)
    ours = parts(own_config, actions)
    shipped, own = (one.build(VECTOR, actions, agents, list(range(agents))) for one in (config, own_config))
    for before, after in zip(shipped.state, own.state, strict=True):
        for (plan, old), (module, new) in zip(theirs, ours, strict=True):
            for a, b in zip(old, new, strict=True):
                moved(plan, module, before[a], after[b])
        if name == "iqn":  # embedding and head
            for i, part in itertools.product((0, 1), (1, 2)):
                old, new = (one._plan(VECTOR, N).parts[part] for one in (config, own_config))
                after[i * own.n_weights :][new] = before[i * shipped.n_weights :][old]
    shipped.save()
    own.random[:] = shipped.random
    own.load()
    batch = stacked_batch(VECTOR, actions, config.replay(VECTOR, actions), agents)
    rng = np.random.default_rng(0)
    for step in range(100 if agents == 1 else 20):
        for seen in (batch.observation, batch.next_observation):
            if seen is not None:
                seen[:] = rng.normal(size=seen.shape)
        batch.action[:] = (
            rng.integers(0, 3, batch.action.shape) if actions is N else rng.normal(size=batch.action.shape)
        )
        batch.reward[:], batch.discount[:] = rng.normal(size=batch.reward.shape), 0.9
        for field in batch.extra.values():
            field[:] = -1
        for learner in (shipped, own):
            learner.update(batch, [step] * agents)
    for before, after in zip(shipped.state, own.state, strict=True):
        for (_, old), (module, new) in zip(theirs, ours, strict=True):
            for a, b in zip(old, new, strict=True):
                np.testing.assert_allclose(before[a], unpadded(module, after[b]), rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize("make", [foreign.mlp, foreign.attention])
def test_stacked_passes_are_those_of_a_loop(make: Any) -> None:
    plan = Seen(ENTITIES, 1).network(Source.of(make, "network"), "network", 3)
    rows, x = torch.zeros(6, plan.size), torch.randn(6, 7, 32)
    for i, row in enumerate(rows):
        plan.initialise(row.numpy(), np.random.default_rng(i))
    found = []
    for kind in (StackedModules, functools.partial(LoopedModules, seed=None)):
        grad = torch.full_like(rows, 7.0)
        for parameter in plan.parameters:
            grad[:, parameter.part] = 0
        net = kind(plan, rows, grad, True)
        done, ahead = net.forward_both(x[:, :6])
        back = net.backward(done, torch.ones_like(done.out))
        found.append((done.out, ahead, back, grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert (
        plan.stacks and isinstance(plan.bind(rows), StackedModules) and isinstance(plan.bind(rows[:3]), LoopedModules)
    )


# ---- what a network sees


class Seeing(nn.Module):
    """Keeps the last observation."""

    def __init__(self, space: Any, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs))

    def forward(self, seen: Any) -> torch.Tensor:
        Seeing.last = seen
        leaf = seen["b"][0] if isinstance(seen, dict) else seen
        return self.weight.expand(len(leaf), -1)


def test_observations_arrive_in_the_form_of_the_space() -> None:
    space = Dict(
        a=Box(0, 255, (2, 3), np.uint8),
        b=Tuple([Discrete(3, start=5), Box(0, 9, (2,), np.int32), MultiDiscrete([4, 5])]),
    )
    config = DQNConfig(network=Seeing, n_frames=2, **VALUES)
    behaviour = config.behaviour(space, N)
    behaviour.load(np.zeros(config.sizes(space, N).weights, np.float32), {"epsilon": 0.0})
    a, i = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3), np.array([[5, 6], [7, 5]])
    b, c = np.arange(8, dtype=np.int32).reshape(2, 2, 2), np.array([[[0, 4], [3, 2]], [[1, 1], [2, 0]]])
    behaviour.act({"a": a, "b": (i, b, c)})
    seen: Any = Seeing.last
    np.testing.assert_allclose(seen["a"].numpy(), a / 255, rtol=1e-6)
    assert seen["b"][0].tolist() == i.tolist() and seen["b"][0].dtype == torch.int64
    assert seen["b"][1].tolist() == b.tolist() and seen["b"][1].dtype == torch.float32
    assert seen["b"][2].tolist() == c.tolist() and seen["b"][2].dtype == torch.int64


def test_the_function_gets_the_space_with_its_frames() -> None:
    config = DQNConfig(
        network=lambda space, outputs: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(space.shape), outputs)),
        n_frames=4,
        **VALUES,
    )
    assert config.sizes(VECTOR, N).weights == 4 * 5 * 3 + 4 + 16


# ---- random layers


def test_random_layers_draw_from_the_agents_streams() -> None:
    config = DQNConfig(network=foreign.Dropped, **VALUES)
    first, second = (config.build(VECTOR, N, 2, seeds) for seeds in ([1, 2], [1, 3]))
    batch = stacked_batch(VECTOR, N, config.replay(VECTOR, N), 2)
    batch.observation[:] = 1
    batch.reward[:] = 1
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for learner in (first, second):
        learner.update(batch, [0, 0])
        learner.save()
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(first.state[0], second.state[0]) and not np.array_equal(first.random[0], first.random[1])
    assert np.array_equal(first.random[0], second.random[0])


# ---- refusals


class Shared:
    weight = nn.Parameter(torch.zeros(5, 3))


def with_shared(space: Any, outputs: int) -> nn.Module:
    made = nn.Linear(5, outputs)
    made.weight = made_once
    return made


made_once = nn.Parameter(torch.zeros(3, 5))


class Wrong(nn.Linear):
    def __init__(self, how: str) -> None:
        super().__init__(5, 3)
        self.how = how
        if how == "drawn buffer":
            self.register_buffer("mask", torch.rand(3))
        if how == "float64":
            self.double()
        if how == "count":
            self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        out = super().forward(x)
        match self.how:
            case "count":
                self.count += 1
            case "shape":
                return out[:, :2]
            case "list":
                return [out]
            case "rows":
                return out - x.mean()
            case "writes":
                x += 1
            case "draws":
                return out + torch.rand(())
            case "raises":
                raise ValueError("no")
        return out


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (3, "network must be a function or class that makes a torch.nn.Module, got 3"),
        ("mine", "its path 'module:function', or one of .*, got 'mine'"),
        (nn.Linear(5, 3), "got a module that is made already"),
        (lambda space: nn.Linear(5, 3), r"network must be a function of \(observation_space, outputs\)"),
        (lambda space, n: "a net", "network must make a torch.nn.Module, got 'a net'"),
        (lambda space, n: nn.ReLU(), "network must have parameters"),
        ("support.foreign_networks:absent", "absent"),
        (lambda space, n: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), "got the buffer 1.running_mean"),
        (with_shared, "got weight again in the next network"),
        (lambda space, n: Wrong("drawn buffer"), "depend on random numbers, got mask"),
        (lambda space, n: Wrong("float64"), "parameters must be float32, got torch.float64 for weight"),
        (lambda space, n: Wrong("count"), "got the buffer count"),
        (lambda space, n: Wrong("shape"), r"must return a tensor \[batch, 3\], got \[3, 2\] for 3 rows"),
        (lambda space, n: Wrong("list"), "got a list"),
        (lambda space, n: Wrong("rows"), "rows that depend on the others"),
        (lambda space, n: Wrong("writes"), "must not write to its input"),
        (lambda space, n: Wrong("draws"), "must draw no random numbers in eval"),
        (lambda space, n: Wrong("raises"), r"network raised ValueError: no. The network .* got float32 \[3, 5\]"),
        (lambda space, n: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_networks_that_break_a_rule_are_refused_before_the_run(network: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        DQNConfig(network=network, **VALUES).sizes(VECTOR, N)


def test_contradictory_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="network is only valid without encoder"):
        DQNConfig(network=foreign.mlp, encoder=foreign.mlp)
    with pytest.raises(SettingError, match="normalise must be False for networks of your own that see Discrete"):
        PPOConfig(encoder=foreign.PictureAndVector, normalise=True).sizes(NEST, N)
    with pytest.raises(SettingError, match="critic must be given with network for pictures"):
        TD3Config(network=foreign.mlp).sizes(NEST["picture"], BOX)
    with pytest.raises(SettingError, match="at most 2"):
        DQNConfig(network=foreign.mlp, **VALUES).sizes(MultiDiscrete([2**25]), N)


def test_check_network_makes_it_in_a_child() -> None:
    check_network("support.foreign_networks:mlp", VECTOR, 3)
    check_network(foreign.PictureAndVector, NEST)
    with pytest.raises(SpecError, match="got the buffer"):
        check_network(lambda space, n: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), VECTOR, 3)
    only_here = Path(__file__).stat().st_ino, __import__("os").getpid()

    def make(space: Any, outputs: int) -> nn.Module:
        if __import__("os").getpid() != only_here[1]:
            raise RuntimeError("no licence here")
        return nn.Linear(5, outputs)

    with pytest.raises(SpecError, match=r"failed in one: .*no licence here"):
        check_network(make, VECTOR, 3)


# ---- in files


def test_sources_survive_config_files_and_need_trust() -> None:
    config = DQNConfig(network=functools.partial(foreign.mlp, width=8))
    plain = json.loads(json.dumps(describe(config)))
    assert plain["network"]["function"] == "support.foreign_networks:mlp"
    assert rebuild(plain, trust=True) == config
    for refuse in (rebuild, refuse_untrusted):
        with pytest.raises(SettingError, match=r"'support.foreign_networks:mlp' is not part of motet"):
            refuse(plain)
    with pytest.raises(SettingError, match="bytes"):
        describe(DQNConfig(network=lambda space, n: nn.Linear(5, n)))
    with pytest.raises(SettingError, match="a source must have a function or its code"):
        Source(code="gASVAAA")  # type: ignore[arg-type]


TINY = ["--engine", "serial", "--steps", "60", "--dqn.batch-size", "8", "--dqn.min-rows", "16"]


def test_networks_in_files_and_flags(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "a.toml").write_text(
        'algorithm = "dqn"\nsteps = 60\nengine = "serial"\n[world]\nname = "matrix"\n'
        '[dqn]\nnetwork = "support.foreign_networks:mlp"\nbatch_size = 8\nmin_rows = 16\n'
    )
    given = (["matrix", *TINY, "--dqn.network", "support.foreign_networks:mlp"], [str(tmp_path / "a.toml")])
    for i, arguments in enumerate(given):
        run = tmp_path / f"run{i}"
        assert main(["train", *arguments, "--run", str(run)]) == 0
        agents = json.loads((run / "config.json").read_text())["agents"]
        assert agents["player_0"]["network"]["function"] == "support.foreign_networks:mlp"
    run = tmp_path / "named"
    assert main(["train", "matrix", *TINY, "--dqn.network", "mlp(hidden=(8,), noisy=True)", "--run", str(run)]) == 0
    network = json.loads((run / "config.json").read_text())["agents"]["player_0"]["network"]
    assert network["arguments"] == [["hidden", [8]], ["noisy", True]]
    assert main(["resume", str(run), "--steps", "20"]) == 0
    with pytest.raises(SettingError, match="network must be a function that makes"):
        DQNConfig(network="nothing")


def test_a_sent_run_imports_no_network(tmp_path: Path, monkeypatch: Any) -> None:
    """Not when it is evaluated, and not when it is resumed."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "sent_network.py").write_text(
        "from torch import nn\ndef make(space, n):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(n))\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = tmp_path / "run"
    config = DQNConfig(network="sent_network:make", **VALUES)
    train(MatrixGame, config, Settings(engine="serial", steps=40), run=run)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    sys.modules.pop("sent_network")
    for use in (lambda: evaluate(MatrixGame, str(run), episodes=1), lambda: resume(run, steps=10)):
        with pytest.raises(SettingError, match="'sent_network:make' is not part of motet"):
            use()
        assert "sent_network" not in sys.modules
    assert evaluate(MatrixGame, str(run), settings=EvaluationSettings(episodes=1, trust=True))
