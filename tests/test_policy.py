import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from motet.algorithms import DQNConfig, IQNConfig
from motet.errors import SettingError, SpecError
from motet.policy import BehaviourPolicy, ConstantPolicy, PolicySpec, RandomPolicy
from motet.testing.algorithm import check_algorithm, check_policy

SPACE, ACTIONS = Box(-1, 1, (5,)), Discrete(4, start=2)
CONFIG = DQNConfig(hidden=(8,), batch_size=4, min_rows=4)


def trained(explore: bool = False) -> BehaviourPolicy:
    dqn = CONFIG.build(SPACE, ACTIONS, 1, [3])
    return BehaviourPolicy(CONFIG.behaviour(SPACE, ACTIONS), dqn.weights()[0], {"epsilon": 0.5}, explore=explore)


@pytest.mark.parametrize("masked", [False, True])
def test_shipped_policies_keep_the_contract(masked: bool) -> None:
    for factory in (
        trained,
        lambda: trained(explore=True),
        lambda: RandomPolicy(ACTIONS),
        lambda: ConstantPolicy(np.int64(3), first=2),
    ):
        check_policy(factory, SPACE, ACTIONS, masked=masked)
    check_policy(lambda: RandomPolicy(MultiBinary(3)), Dict(a=SPACE, b=Discrete(2)), MultiBinary(3))


def test_a_trained_policy_keeps_its_own_weights() -> None:
    dqn = CONFIG.build(SPACE, ACTIONS, 1, [3])
    policy = BehaviourPolicy(CONFIG.behaviour(SPACE, ACTIONS), dqn.weights()[0], {"epsilon": 0.0})
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    before = policy.act(x)
    dqn.state[:] = -dqn.state
    assert policy.act(x) == before


def test_a_spec_makes_a_policy_and_refuses_anything_else() -> None:
    assert PolicySpec(RandomPolicy, {"action_space": ACTIONS}).make().act(None) in range(2, 6)
    with pytest.raises(SettingError, match="reset and act"):
        PolicySpec(dict).make()  # type: ignore[arg-type]


class Curious(ConstantPolicy):
    def __init__(self, agent, action_space, *, world=None, action=0):
        super().__init__(action)
        self.told = (agent, action_space, world)


def everything(**told):
    policy = ConstantPolicy(0)
    policy.told = told
    return policy


def test_a_factory_gets_the_arguments_for_which_it_has_parameters() -> None:
    offered = {"observation_space": SPACE, "action_space": ACTIONS, "agent": "a", "world": {"size": 3}}
    assert PolicySpec(Curious).make(**offered).told == ("a", ACTIONS, {"size": 3})
    assert PolicySpec(Curious, {"agent": "mine", "action": 2}).make(**offered).told[0] == "mine"
    assert PolicySpec(everything, {"more": 1}).make(**offered).told == {**offered, "more": 1}
    assert PolicySpec(ConstantPolicy, {"action": 1}).make(**offered).act(None) == 1


def test_a_path_is_imported_only_when_the_policy_is_made() -> None:
    spec = PolicySpec("motet.policy:RandomPolicy")
    assert spec.make(action_space=ACTIONS, agent="a").act(None) in range(2, 6)
    assert [spec.title, PolicySpec(Curious).title, PolicySpec(Curious, name="x").title] == [
        "RandomPolicy",
        "Curious",
        "x",
    ]
    for given, why in (("no_such_module:A", "no module"), ("motet.policy:Nobody", "has no Nobody")):
        with pytest.raises(SettingError, match=why):
            PolicySpec(given).make()
    for given in ("motet.policy", "motet policy:A", ":A", 3):
        with pytest.raises(SettingError, match="policy must be"):
            PolicySpec(given)  # type: ignore[arg-type]


def test_a_mask_that_allows_nothing_is_refused() -> None:
    for policy in (RandomPolicy(ACTIONS), ConstantPolicy(2, first=2), trained()):
        with pytest.raises(SpecError, match="must allow at least one action"):
            policy.act(np.zeros(5, np.float32), np.zeros(4, np.bool_))


class Forgetful(RandomPolicy):
    def reset(self, seed: int) -> None:
        pass


class Elsewhere(ConstantPolicy):
    def act(self, observation, mask=None):
        return 99


class Scribbler(ConstantPolicy):
    def act(self, observation, mask=None):
        observation += 1
        return super().act(observation, mask)


class Blind(ConstantPolicy):
    def act(self, observation, mask=None):
        return self._action


@pytest.mark.parametrize(
    ("factory", "clause"),
    [
        (lambda: Forgetful(ACTIONS), "same seed"),
        (lambda: Elsewhere(2), "elements of the action space"),
        (lambda: Scribbler(np.int64(2), 2), "must not change an observation"),
        (lambda: Blind(np.int64(2)), "must respect the mask"),
    ],
)
def test_broken_policies_are_named(factory, clause) -> None:
    with pytest.raises(SpecError, match=clause):
        check_policy(factory, SPACE, ACTIONS, masked=True)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        DQNConfig(hidden=(8,), batch_size=4, min_rows=4, prioritised=True, dueling=True, n_frames=2),
        IQNConfig(hidden=(8,), batch_size=4, min_rows=4, prioritised=True),
        IQNConfig(hidden=(8,), batch_size=4, min_rows=4, head=(6,), n_frames=3),
    ],
)
def test_shipped_algorithms_keep_the_contract(config, masked: bool) -> None:
    for space in (SPACE, Dict(a=Discrete(3), b=Box(0, 255, (2, 2), np.uint8))):
        check_algorithm(config, space, ACTIONS, masked=masked)
