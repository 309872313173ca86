import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.errors import SettingError
from motet.pace import Pace


@given(st.floats(0.01, 4), st.floats(0, 50), st.integers(0, 300), st.lists(st.booleans(), min_size=50, max_size=400))
def test_neither_side_runs_further_ahead_than_the_slack(ratio, extra, warm_up, turns):
    pace = Pace(ratio, slack=max(1.0, ratio) + extra)
    steps = updates = 0
    for act in turns:
        if act and pace.may_act(updates, steps, warm_up):
            steps += 1
        elif not act and pace.may_learn(updates, steps, warm_up):
            updates += 1
        assert updates <= pace.due(steps, warm_up) + pace.slack + 1
        # One step may make several updates due: what it made due comes on top.
        assert pace.due(steps, warm_up) - pace.slack <= updates + math.ceil(ratio)
        assert pace.may_act(updates, steps, warm_up) or pace.may_learn(updates, steps, warm_up), "both wait"


@given(st.floats(0.01, 4), st.integers(0, 300), st.integers(1, 500))
def test_lockstep_alternates(ratio, warm_up, rounds):
    pace = Pace(ratio, slack=0)
    updates = 0
    for steps in range(rounds):
        while pace.may_learn(updates, steps, warm_up):
            updates += 1
        assert updates == pace.due(steps, warm_up)
        assert pace.may_act(updates, steps, warm_up)


def test_free_running_never_waits_but_for_the_warm_up():
    pace = Pace()
    assert pace.free
    assert pace.may_act(0, 10**9)
    assert pace.may_learn(10**9, 11, 10)
    assert not pace.may_learn(0, 10, 10)


@pytest.mark.parametrize(("ratio", "slack"), [(0, 1), (-1, 1), (math.nan, 1), (1, -1), (1, 0.5), (4, 2)])
def test_contradictions_are_refused(ratio, slack):
    with pytest.raises(SettingError):
        Pace(ratio, slack)
