"""Exported policies act as motet's own, without motet."""

import importlib.util
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from support import EXAMPLES, ROOT, foreign_networks
from torch import nn

import motet
from motet.algorithm import make_behaviour, state_size_of
from motet.algorithms import DQNConfig, IQNConfig, PPOConfig, TD3Config
from motet.algorithms.loss import Categorical, EpsilonGreedy, GaussianNoise, Loss, LossConfig, Net
from motet.cli import main
from motet.errors import SettingError
from motet.nest import map_nest
from motet.policies import export as exporting

VECTOR, PICTURE, BYTES = Box(-1, 1, (5,)), Box(0, 255, (16, 20, 3), "uint8"), Box(0, 255, (4,), "uint8")
MIXED = Dict(a=Discrete(3, start=2), b=Tuple((Box(-1, 1, (2, 2)), BYTES)))
BOX = Box(np.array([-2.0, 0.0], "float32"), np.array([3.0, 1.0], "float32"))


class Attending(nn.Module):
    """A network that is no sequence of torch's layers."""

    def __init__(self, space, outputs):
        super().__init__()
        self.inner = nn.Linear(space.shape[-1], outputs)

    def forward(self, x):
        return torch.sin(self.inner(x)).sum(1) if x.ndim == 3 else torch.sin(self.inner(x))


@dataclass(frozen=True)
class Written(LossConfig):
    """An algorithm as a loss, whose network has more outputs than its rule reads."""

    def networks(self, observations, actions):
        return {"policy": Net("mlp(hidden=(8,))", observations, outputs=5)}

    def loss(self, nets, targets, batch):
        return Loss(nets.policy(batch.observation).square().mean())

    def acting(self, actions):
        if isinstance(actions, Discrete):
            return EpsilonGreedy(actions, 0.1)
        return Categorical(actions) if isinstance(actions, MultiDiscrete) else GaussianNoise(actions, 0.1)


class Median:
    """A rule of a user's own, which is not known as plain data."""

    outputs, fields, masked = 1, {}, 0


CASES = {
    "dqn": (DQNConfig(hidden=(8,)), VECTOR, Discrete(4, start=3)),
    "dqn, dueling, mixed": (DQNConfig(hidden=(8,), dueling=True), MIXED, Discrete(4)),
    "dqn, frames": (DQNConfig(hidden=(8,), n_frames=3), BYTES, Discrete(4)),
    "iqn": (IQNConfig(hidden=(8,)), VECTOR, Discrete(4)),
    "iqn, head": (IQNConfig(hidden=(8,), head=(6, 7), mean_taus=5), MIXED, Discrete(4)),
    "iqn, encoder, head": (IQNConfig(hidden=(8,), head=(6,), encoder="convolutions"), PICTURE, Discrete(4)),
    "ppo, normalised, mixed": (PPOConfig(hidden=(8,), normalise=True), MIXED, MultiDiscrete([3, 4], start=[1, 0])),
    "ppo, box": (PPOConfig(hidden=(8,)), VECTOR, BOX),
    "ppo, unbounded": (PPOConfig(hidden=(8,)), VECTOR, Box(-np.inf, np.inf, (2, 1))),
    "ppo, picture": (PPOConfig(hidden=(8,)), PICTURE, Discrete(4)),
    "ppo, picture of frames": (PPOConfig(hidden=(8,), n_frames=3), PICTURE, BOX),
    "ppo, gru": (PPOConfig(hidden=(8,), memory="gru", memory_size=6, length=32), MIXED, Discrete(4)),
    "ppo, lstm, normalised": (PPOConfig(hidden=(8,), memory="lstm", memory_size=17, normalise=True), VECTOR, BOX),
    "dqn, gru": (DQNConfig(hidden=(8,), memory="gru", memory_size=6, dueling=True), MIXED, Discrete(3, start=1)),
    "iqn, lstm": (IQNConfig(hidden=(8,), head=(8,), memory="lstm", memory_size=6), VECTOR, Discrete(3)),
    "dqn, own memory": (DQNConfig(hidden=(8,), encoder=foreign_networks.Recalling), VECTOR, Discrete(3)),
    "td3, normalised bytes": (TD3Config(hidden=(8,), normalise=True), BYTES, BOX),
    "td3, channels first": (TD3Config(hidden=(8,)), Box(0, 255, (3, 16, 20), "uint8"), BOX),
    "loss, values": (Written(), VECTOR, Discrete(4, start=3)),
    "loss, choices": (Written(), VECTOR, MultiDiscrete([2, 3])),
    "loss, noise": (Written(), VECTOR, BOX),
    "named": (DQNConfig(network="mlp(layer_norm=True, activation='gelu', noisy=True)"), VECTOR, Discrete(4)),
    "own, in one piece": (DQNConfig(network=Attending), Box(-1, 1, (3, 5)), Discrete(4)),
}


class Case:
    """A policy with weights by which its actions depend on the observation, its greedy actions, and its export."""

    def __init__(self, name):
        self.config, self.observations, self.actions = CASES[name]
        for seed in range(20):
            self._make(seed)
            if len(np.unique(self.asked(None)[0], axis=0)) > 2:
                return
        raise AssertionError("it always does the same")

    def _make(self, seed):
        spaces, rng = (self.observations, self.actions), np.random.default_rng(seed)
        learner = self.config.build(*spaces, 1, [0])
        self.weights = learner.weights()[0] + rng.normal(0, 0.5, learner.n_weights).astype(np.float32)
        if getattr(self.config, "normalise", False):
            size = exporting.greedy_module(self.config, "", self.weights, *spaces).get_buffer("mean").numel()
            self.weights[size : 2 * size] = rng.uniform(0.5, 2, size)
        self.behaviour = make_behaviour(self.config, *spaces)
        header = {key: np.zeros(shape, dtype)[()] for key, (shape, dtype) in self.config.header.items()}
        self.behaviour.load(self.weights, header)
        self.observations.seed(0)
        frames = self.config.n_frames
        seen = [[self.observations.sample() for _ in range(frames)] for _ in range(64)]
        stacked = [map_nest(lambda *parts: np.stack(parts), *one) if frames > 1 else one[0] for one in seen]
        self.batch = map_nest(lambda *parts: np.stack([np.asarray(part) for part in parts]), *stacked)
        self.state = rng.normal(size=(64, state_size_of(self.behaviour))).astype(np.float32)
        self.masked = isinstance(self.actions, Discrete)
        self.mask = rng.random((64, self.actions.n)) < 0.6 if self.masked else None
        if self.masked:
            self.mask[np.arange(64), rng.integers(0, self.actions.n, 64)] = True
        self.module = exporting.greedy_module(self.config, "agent_0", self.weights, *spaces, self.masked)

    def asked(self, mask):
        """Return what the policy itself does, and its new state."""
        if self.state.shape[1]:
            actions, _, new = self.behaviour.act_from(self.state, self.batch, mask, False)
            return actions, new
        return self.behaviour.act(self.batch, mask, False)[0], self.state

    def check(self, found, new_state, masked):
        expected, state = self.asked(self.mask if masked else None)
        assert found.shape == expected.shape
        np.testing.assert_allclose(new_state, state, rtol=1e-4, atol=1e-4)
        if self.masked or isinstance(self.actions, MultiDiscrete):
            assert np.array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

    @property
    def tensors(self):
        return map_nest(torch.from_numpy, self.batch)


@pytest.fixture(scope="module")
def loader():
    """The class that the guide shows and the example uses."""
    return runpy.run_path(str(EXAMPLES / "play_exported.py"))["Policy"]


OWN_MEMORY = "dqn, own memory"  # for ONNX only: the loader of the guide cannot step a module that it does not know


@pytest.mark.parametrize("name", [name for name in CASES if name != OWN_MEMORY])
def test_a_torch_file_acts_as_the_policy(name, loader, tmp_path):
    case = Case(name)
    exporting._write_torch(case.module, tmp_path / "policy.pt")
    own = Attending(case.observations, 4) if name.startswith("own") else None
    policy = loader(tmp_path / "policy.pt", own)
    assert policy.about["state_size"] == case.state.shape[1]
    for masked in (False, True)[: 1 + case.masked]:
        mask = torch.from_numpy(case.mask) if masked else None
        found, new = policy(case.tensors, torch.from_numpy(case.state), mask)
        case.check(found.numpy(), new.numpy(), masked)


SLOW = pytest.mark.slow  # each export takes seconds
FAST = "ppo, gru"  # with a dict, a mask and a state
ONNX = [FAST, *(pytest.param(name, marks=SLOW) for name in CASES if name != FAST)]


@pytest.mark.parametrize("name", ONNX)
def test_an_onnx_file_acts_as_the_policy(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    case = Case(name)
    exporting._write_onnx(case.module, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    leaves = []
    map_nest(leaves.append, case.batch)
    remembers = case.state.shape[1] > 0
    given = [*leaves, *([case.mask] if case.masked else []), *([case.state] if remembers else [])]
    names = [one.name for one in session.get_inputs()]
    assert names == case.module.input_names()
    found, *new = session.run(None, dict(zip(names, given, strict=True)))
    case.check(found, new[0] if remembers else case.state, masked=case.masked)
    one, *_ = session.run(None, {name: array[:1] for name, array in zip(names, given, strict=True)})
    np.testing.assert_allclose(one[0], found[0], rtol=1e-5, atol=1e-5)


# ---- from runs


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    run = tmp_path_factory.mktemp("cartpole") / "run"
    config = PPOConfig(hidden=(8,), normalise=True, batch_size=2, length=16, minibatches=2, epochs=1)
    motet.train(
        "gym:CartPole-v1", config, motet.Settings(steps=64, engine="serial"), run=run, display="off", pictures=False
    )
    return run


def test_the_command_writes_files_that_play_without_motet(cartpole, tmp_path, capsys):
    assert main(["export", str(cartpole), "--torch", str(tmp_path / "policy.pt")]) == 0
    assert "policy.pt" in capsys.readouterr().out
    blocked = "import sys; sys.modules['motet'] = None; import runpy; sys.argv[:] = sys.argv[1:]\n"
    blocked += "runpy.run_path(sys.argv[0], run_name='__main__')"
    script = [sys.executable, "-c", blocked, str(EXAMPLES / "play_exported.py"), str(tmp_path / "policy.pt")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len((EXAMPLES / "play_exported.py").read_text().splitlines()) <= 60
    assert done.stdout.splitlines()[-1].startswith("episode 4: return ")


def test_an_exported_run_acts_as_load_policies(cartpole, loader, tmp_path):
    motet.export(cartpole, "agent_0", torch=tmp_path / "policy.pt")
    exported, (policy,) = loader(tmp_path / "policy.pt"), motet.load_policies(cartpole).values()
    rng = np.random.default_rng(0)
    policy.reset(0)
    for seen in rng.normal(size=(50, 4)).astype(np.float32):
        found, _ = exported(torch.from_numpy(seen)[None], torch.zeros(1, 0))
        assert int(found[0]) == int(policy.act(seen))


def test_policies_that_cannot_be_exported_are_named(cartpole, tmp_path, monkeypatch):
    with pytest.raises(SettingError, match="torch or onnx must be given"):
        motet.export(cartpole)
    with pytest.raises(SettingError, match=r"agent must be one of agent_0 of the run .*, got 'nobody'"):
        motet.export(cartpole, "nobody", torch=tmp_path / "x.pt")
    with pytest.raises(SettingError, match="must be one that can be exported, got object"):
        exporting.greedy_module(object(), "agent_0", np.zeros(4, np.float32), VECTOR, Discrete(2))
    monkeypatch.setattr(Written, "acting", lambda self, actions: Median())
    with pytest.raises(SettingError, match="acting must have a method best for export, got Median"):
        Written().greedy(VECTOR, Discrete(2), np.zeros(4, np.float32))
    with pytest.raises(SettingError, match=r"weights .* got 7: it was trained in another world"):
        exporting.greedy_module(DQNConfig(), "agent_0", np.zeros(7, np.float32), VECTOR, Discrete(2))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"onnx and onnxscript must be installed .*pip install 'motet\[onnx\]'"):
        motet.export(cartpole, onnx=tmp_path / "x.onnx")
    assert not os.listdir(tmp_path)


def test_the_guide_shows_the_loader_of_the_example():
    code, page = (EXAMPLES / "play_exported.py").read_text(), (ROOT / "docs" / "export.md").read_text()
    assert code[code.index("class Policy") : code.index("\n\n\ndef main")] in page
