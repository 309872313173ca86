"""The fast computation of what the pace allows agrees with the plain rule."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.errors import SettingError
from motet.pace import Pace
from motet.replay import Field, Replay, ReplaySpec, step_counter
from motet.training.progress import ActorProgress, StackProgress

LANES, WARM_UP = 2, 8 + 2 * 1 + 1


class Counts:
    """A run of which only the counts exist: policies in stacks, their steps, updates, waived updates and rests."""

    def __init__(self, stacks, pace, once=False):
        reading = SimpleNamespace(once=once, min_rows=1, batch_size=8, n_step=1, n_frames=1, reads_ahead=1, stride=1)
        policies = [SimpleNamespace(settings=reading) for stack in stacks for _ in stack]
        self.roster = SimpleNamespace(stacks=stacks, policies=policies, pace=pace, lanes=lambda policy: LANES)
        self.learned = SimpleNamespace(
            **{name: np.zeros(len(policies), np.uint64) for name in ("updates", "waived", "resting")}
        )
        self.board = SimpleNamespace(learned=self.learned)
        self.updates_before, self.steps = [0] * len(policies), [0] * len(policies)
        self.asked = 0

    def step_counter(self, policies):
        def count():
            self.asked += len(policies)
            return [self.steps[policy] for policy in policies]

        return count

    def batches(self, policy):
        return self.steps[policy] // 8

    def done(self, policy):
        return int(self.learned.updates[policy] + self.learned.waived[policy])


def counts_at_length(run, stack):
    steps = [run.steps[policy] for policy in stack]
    return [min(other for other in steps if own - LANES <= other) for own in steps]


def due_at_length(run, stack):
    """The rule as it is written down in decision 15, without any short cut."""
    pace, counts = run.roster.pace, counts_at_length(run, stack)
    enough = [count > WARM_UP and not run.learned.resting[policy] for policy, count in zip(stack, counts, strict=True)]
    found = [
        has_rows and pace.may_learn(run.done(policy), count, WARM_UP)
        for policy, count, has_rows in zip(stack, counts, enough, strict=True)
    ]
    if found == enough:
        return found
    owed = [
        pace.due(count, WARM_UP) - run.done(policy)
        for policy, count, has_rows in zip(stack, counts, enough, strict=True)
        if has_rows
    ]
    return found if max(owed) > pace.patience(LANES) else [False] * len(stack)


def may_act_at_length(run):
    return all(
        bool(run.learned.resting[policy]) or run.roster.pace.may_act(run.done(policy), count, WARM_UP)
        for stack in run.roster.stacks
        for policy, count in zip(stack, counts_at_length(run, stack), strict=True)
    )


PACES = [Pace(0.05, 0), Pace(0.3, 0), Pace(1.0, 0), Pace(2.5, 0), Pace(0.3, 2), Pace(1.0, 7), Pace(3.0, 32), Pace()]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), pace=st.sampled_from(PACES), stacks=st.sampled_from([[(0,)], [(0, 1, 2)], [(0, 2), (1, 3)]]))
def test_updates_that_are_due_and_rounds_that_are_allowed_are_those_of_the_plain_rule(data, pace, stacks):
    run = Counts(stacks, pace)
    learners = [StackProgress(run, k) for k in range(len(stacks))]
    actor = ActorProgress([StackProgress(run, k) for k in range(len(stacks))])
    policies, acted = len(run.steps), set()
    for _ in range(data.draw(st.integers(10, 80))):
        what = data.draw(st.sampled_from(["act", "act", "act", "act in turn", "learn", "learn", "rest"]))
        if what == "act":
            acted = data.draw(st.sets(st.integers(0, policies - 1)))
            for policy in acted:
                run.steps[policy] += data.draw(st.sampled_from([1, 1, 2, 9]))
        elif what == "act in turn":
            acted = {int(np.argmin(run.steps))}
            run.steps[min(acted)] += 1
        elif what == "rest":
            policy = data.draw(st.integers(0, policies - 1))
            if run.learned.resting[policy]:
                k, i = next((k, s.index(policy)) for k, s in enumerate(stacks) if policy in s)
                run.learned.waived[policy] += max(0, learners[k].owed(i))
            run.learned.resting[policy] = 1 - run.learned.resting[policy]
        for progress, stack in zip(learners, stacks, strict=True):
            due = progress.due()
            assert due == due_at_length(run, stack)
            assert due == progress.due(), "asked again"
            if what == "learn" and any(due):
                run.learned.updates[[policy for policy, is_due in zip(stack, due, strict=True) if is_due]] += 1
        assert actor.may_act(acted) == may_act_at_length(run) == actor.may_act()
        acted = set()


def test_an_actor_far_from_its_limit_asks_about_those_that_acted_alone():
    run = Counts([tuple(range(100))], Pace(0.05, 32))
    actor = ActorProgress([StackProgress(run, 0)])
    assert actor.may_act()
    run.asked = 0
    for policy in range(100):
        run.steps[policy] += 1
        assert actor.may_act({policy})
    assert run.asked == 100
    run.steps[7] += 32 * 20 + WARM_UP  # at its own limit, though in step with nobody
    run.steps[7:9] = [run.steps[7] + 21] * 2
    assert not actor.may_act({7, 8})
    run.learned.updates[:] = 3
    assert actor.may_act()


def test_a_learner_without_work_asks_nothing_but_the_steps():
    run = Counts([(0, 1)], Pace(0.1, 0))
    progress = StackProgress(run, 0)
    run.steps[:] = [WARM_UP + 9, WARM_UP + 9]
    assert progress.due() == [False, False]
    run.learned.updates = run.learned.waived = run.learned.resting = None  # whoever looks here fails
    assert progress.due() == [False, False]
    run.steps[0] += 1  # not due yet: policies in step count as many steps as the one with the fewest
    with pytest.raises(TypeError):
        progress.due()


@pytest.mark.parametrize("slack", [0.0, 5.0, 8.5, math.inf])
def test_the_first_step_with_which_an_update_is_due_is_the_first(slack):
    """Also where a quotient of floats is a little more or less than it should be, as 7 / 0.7 and 29 / 0.29 are."""
    for hundredths in range(1, 400, 1 if slack == 0 else 17):
        pace = Pace(hundredths / 100, slack)
        for updates in range(-3, 120):
            first = pace.first_due(updates, warm_up=10)
            assert pace.may_learn(updates, first, 10)
            assert not pace.may_learn(updates, first - 1, 10)


def test_lanes_are_counted_together_and_by_replay():
    replays = [Replay(ReplaySpec(Field((2,)), Field(dtype="int64"), capacity=100, lanes=2)) for _ in range(3)]
    count = step_counter(replays)
    assert count() == [0, 0, 0]
    seen = np.zeros((2, 2), np.float32)
    writers = replays[1].writers([0, 1])
    for _ in range(4):
        writers.append(np.array([0, 1]), seen, np.zeros(2, np.int64), np.zeros(2, np.float32))
    writers.append(np.array([1]), seen[:1], np.zeros(1, np.int64), np.zeros(1, np.float32), truncated=np.array([True]),
                   final_observation=seen[:1])  # fmt: skip
    assert count() == [0, 9, 0], "an episode's final observation is no step"
    assert [replay.steps for replay in replays] == count()
    # Rows 0 to 3, and 0 to 5 with the final one: a fragment needs the row behind it.
    assert [replays[1].counts.fragments(length) for length in (1, 2, 3, 4, 5, 6)] == [8, 3, 2, 1, 1, 0]
    assert replays[0].counts.fragments(1) == 0
    for wrong in (0, -1, "two"):
        with pytest.raises(SettingError, match="length must be an int >= 1, got"):
            replays[1].counts.fragments(wrong)
    with pytest.raises(SettingError, match="size must divide the 2 lanes, got 3"):
        replays[1].counts.steps_by(3)
