"""A bad answer costs the policy that gave it, in the process of the job as in one of its own."""

import random
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo.classic import tictactoe_v3
from support import hostile_zoo
from support import playing_policies as playing

import motet
from motet.errors import PolicyFailure
from motet.evaluation.jobs import JobPool
from motet.isolation.policy import IsolatedPolicy
from motet.policy import PolicySpec


@pytest.fixture(scope="module")
def workers():
    with JobPool(1) as made:
        yield made


ANSWERS = {
    # name: (cause, what its detail says, actions are a box)
    "AnswersAGiant": ("answer", "a number of 19,932 bits; expected 0 to 2", False),
    "AnswersReluctantly": ("answer", "Reluctant", False),
    "AnswersANumberOfItsOwn": (None, "", False),
    "AnswersARelative": (None, "", True),
    "AnswersWithAnotherClass": ("answer", "Liar", True),
    "AnswersAGiantInAnArray": ("answer", "list", True),
    "AnswersText": ("answer", "left, please", False),
    "AnswersOutOfBounds": ("answer", "3; expected 0 to 2", False),
    "AnswersNan": ("answer", "nan", True),
    "RaisesTheUnprintable": ("exception", "Worse", False),
    "Raises": ("exception", "ValueError: I had enough[2J", False),
    "Exits": ("exception", "SystemExit: I am done here", False),
    "ExitsAtReset": ("reset", "SystemExit", False),
    "ExitsAtStart": ("start", "SystemExit: 0", False),
    "Interrupts": ("exception", "KeyboardInterrupt", False),
    "LeavesAGenerator": ("exception", "GeneratorExit", False),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_bad_answer_affects_only_its_policy(workers, name):
    """The same bytes in the job's process and in one of its own; the others' returns are those of a fair game."""
    cause, detail, box = ANSWERS[name]
    at = 3 if name.startswith(("Answers", "Raises", "Exits", "Interrupts", "Leaves")) and not box else 0
    arguments = {} if name == "ExitsAtStart" else {"at": at}
    hostile = PolicySpec(f"support.hostile_zoo:{name}", arguments, "hostile")
    results = [
        motet.evaluate(
            partial(playing.Duet, turns=6, box=box),
            {"left": hostile, "right": playing.Recurrent},
            episodes=3,
            isolate=isolate,
            workers=workers,
        )
        for isolate in (False, True)
    ]
    for result in results:
        assert [one.failed for one in result.episodes] == [""] * 3
        assert result.failures() == ({} if cause is None else {"hostile": {cause: 3}})
        for failure in (failure for one in result.episodes for failure in one.failures):
            assert detail in failure.detail and (failure.policy, failure.agents) == ("hostile", ("left",))
            assert "\x1b" not in failure.detail and len(failure.detail) <= 2000
    assert results[0] == results[1]


def test_earlier_episodes_are_kept(workers):
    class Late:
        """Fails in one episode of three or so."""

        def reset(self, seed):
            self.bad = seed % 3 == 0

        def act(self, observation, mask=None):
            return hostile_zoo.Reluctant() if self.bad else 1

    result = motet.evaluate(playing.Duet, [PolicySpec(Late, name="late"), "random"], episodes=20, workers=workers)
    failed = [one.number for one in result.episodes if one.failures]
    assert len(result.episodes) == 20 and 0 < len(failed) < 20 and result.failures().keys() == {"late"}


# ---- signatures


class Bare:
    """As most people write one."""

    def reset(self, seed):
        self.rng = random.Random(seed)

    def act(self, observation):
        return self.rng.randrange(3)


class Switched(Bare):
    """The second parameter is something else, with a default."""

    def act(self, observation, training=False):
        assert training is False
        return self.rng.randrange(3)


class Demanding(Bare):
    def act(self, observation, legal):
        return int(np.flatnonzero(legal)[0]) if legal is not None else self.rng.randrange(3)


class Named(Bare):
    def act(self, observation, training=False, *, mask=None):
        assert training is False
        return int(np.flatnonzero(mask)[-1]) if mask is not None else self.rng.randrange(3)


class Anything(Bare):
    def act(self, *everything, **more):
        _, *rest = everything
        mask = rest[0] if rest else more.get("mask")
        return int(np.flatnonzero(mask)[-1]) if mask is not None else self.rng.randrange(3)


class ByKeyword(Bare):
    def act(self, observation, **more):
        mask = more.get("mask")
        return int(np.flatnonzero(mask)[-1]) if mask is not None else self.rng.randrange(3)


SHAPES = [Bare, Switched, Demanding, Named, Anything, ByKeyword]


@pytest.mark.parametrize("policy", SHAPES)
def test_one_rule_for_signatures(workers, policy):
    """In the job's process, in one of its own, and in one that is shared."""
    results = [
        motet.evaluate(playing.Duet, policy, episodes=2, workers=workers, **how)
        for how in ({}, {"isolate": True}, {"isolate": True, "max_processes": 1})
    ]
    assert not results[0].failures(), results[0].episodes[0].failures
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("policy", SHAPES)
def test_masks_are_passed_to_policies_with_a_parameter_for_them(workers, policy):
    results = [
        motet.evaluate(tictactoe_v3.env, policy, episodes=2, workers=workers, **how)
        for how in ({}, {"isolate": True}, {"isolate": True, "max_processes": 1})
    ]
    causes = {failure.cause for one in results[0].episodes for failure in one.failures}
    assert causes == ({"answer"} if policy in (Bare, Switched) else set()), results[0].episodes[0].failures
    assert results[0] == results[1]
    assert causes or results[2] == results[0]  # one that fails in a shared process fails on all seats there


def test_a_joint_policy_needs_no_masks(workers):
    class Pair:
        def reset(self, seed):
            self.rng = random.Random(seed)

        def act_jointly(self, observations):
            return {agent: self.rng.randrange(3) for agent in observations}

    results = [
        motet.evaluate(playing.Duet, Pair, episodes=2, isolate=isolate, workers=workers) for isolate in (False, True)
    ]
    assert not results[0].failures() and results[0] == results[1]


def test_the_same_policy_by_hand():
    with IsolatedPolicy(PolicySpec(Bare), Box(0, 1, (4,)), Discrete(3), masked=True) as policy:
        policy.reset(1)
        assert policy.act(np.zeros(4, np.float32), np.array([True, True, True])) in range(3)
    with IsolatedPolicy(PolicySpec("support.hostile_zoo:AnswersAGiant"), Box(0, 1, (4,)), Discrete(3)) as policy:
        policy.reset(1)
        with pytest.raises(PolicyFailure, match="answer: the action is") as failure:
            policy.act(np.zeros(4, np.float32))
        assert failure.value.cause == "answer"


class SharedBox(playing.Duet):
    """Its agents have one space, as an object, and actions that are numbers of it."""

    _acting = Box(-1, 1, (1,), np.float32)

    def action_space(self, agent):
        return self._acting

    def step(self, actions):
        assert all(abs(action[0]) <= 1 for action in actions.values())
        return super().step(actions)


class DrawsFromItsSpace:
    """As many policies do."""

    def __init__(self, action_space):
        self.space = action_space

    def reset(self, seed):
        self.space.seed(seed)

    def act(self, observation):
        return self.space.sample()


class WidensItsBox(DrawsFromItsSpace):
    def act(self, observation):
        self.space.high[:] = 5
        return np.array([4], np.float32)


@pytest.mark.parametrize("policy", ["random", DrawsFromItsSpace, WidensItsBox])
def test_policies_in_one_process_share_no_space(workers, policy):
    """They drew from one generator, and could change what the others, and the world, took for an action."""
    results = [
        motet.evaluate(SharedBox, policy, episodes=2, isolate=isolate, workers=workers) for isolate in (False, True)
    ]
    assert results[0] == results[1]
    assert not any(one.failed for one in results[0].episodes)
