"""Enumeration: what is found, in which order, and what a model may not do."""

import os
import stat
from itertools import count, product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_models import Layered, Line

from motet.errors import CorruptionError, MemoryShortError, ModelError, SettingError
from motet.plan import Graph, enumerate_states
from motet.plan import enumeration as enumeration_module
from motet.worlds.rooms import MAPS, Rooms


class Dag:
    """A random acyclic model whose transitions skip levels, so that discovery order is not topological order."""

    agents = ("a", "b")
    action_space = SimpleNamespace(n=2)

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.size = int(rng.integers(2, 12))
        self.table = {}
        for state in range(self.size - 1):
            for joint in product(range(2), repeat=2):
                to = sorted(set(rng.integers(state + 1, self.size, 2).tolist()))
                self.table[state, joint] = [(1 / len(to), t) for t in to]

    def reset(self):
        pass

    def get_state(self):
        return 0

    def set_state(self, state):
        pass

    def transition_probabilities(self, state, actions):
        return None if state == self.size - 1 else self.table[state, tuple(actions)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_levels_are_longest_ways_and_everything_is_as_the_model_says(seed):
    model = Dag(seed)
    graph = enumerate_states(model)
    longest = {0: 0}
    for state in range(model.size):
        if state not in longest:
            continue
        for joint in product(range(2), repeat=2):
            for _, to in model.table.get((state, joint), ()):
                longest[to] = max(longest.get(to, 0), longest[state] + 1)
    assert sorted(graph.states) == sorted(longest)
    for number, state in enumerate(graph.states):
        assert graph.number(state) == number
        assert graph.levels[longest[state]] <= number < graph.levels[longest[state] + 1]
        for joint in product(range(2), repeat=2):
            expected = {to: p for p, to in model.table.get((state, joint), ())}
            assert {graph.states[to]: p for p, to in graph.transitions(number, joint)} == expected
    graph.check("here")


def test_joint_actions_with_one_distribution_share_it():
    graph = enumerate_states(Rooms("closet", horizon=2))
    assert graph.joint.dtype == np.uint8
    counts = np.diff(graph.dists)
    assert counts[0] < graph.joints  # walking into a wall is the same in three directions
    for state in range(len(graph)):
        rows = [
            tuple(sorted(graph.transitions(state, joint))) for joint in product(range(4), repeat=2) if counts[state]
        ]
        assert len(set(rows)) == counts[state]


def test_duplicates_and_zeros_in_a_distribution():
    model = Line(1, {(0, 0): [(0.25, 1), (0.0, 7), (0.75, 1)], (0, 1): [(1.0, 1)]})
    graph = enumerate_states(model)
    assert list(graph.states) == [0, 1]
    assert np.diff(graph.dists).tolist() == [1, 0]
    assert graph.probability.tolist() == [1.0]


def test_the_same_distribution_in_another_order_is_the_same():
    model = Line(
        9, {(0, 0): [(0.25, 1), (0.75, 9)], (0, 1): [(0.75, 9), (0.25, 1)], (1, 0): [(1.0, 9)], (1, 1): [(1, 9)]}
    )
    assert np.diff(enumerate_states(model).dists).tolist() == [1, 1, 0]


@pytest.mark.parametrize("name", MAPS)
def test_ready_maps_have_an_end(name):
    graph = enumerate_states(Rooms(name, horizon=3))
    assert len(graph.levels) == 4 + 1
    assert np.isin(np.flatnonzero(graph.terminal), np.arange(graph.levels[3], graph.levels[4])).all()


def test_transitions_that_differ_in_duration_or_reward_stay_separate():
    class Timed(Line):
        def transition_durations(self, state, actions, transitions):
            return [1.0 + actions[0]] * len(transitions)

        def transition_rewards(self, state, actions, transitions):
            return [[float(successor)] for _, successor in transitions]

    graph = enumerate_states(Timed(2), rewards=True)
    assert np.diff(graph.dists).tolist() == [2, 2, 0]  # the same successor, but another duration
    assert graph.duration.tolist() == [1.0, 2.0, 1.0, 2.0]
    assert graph.reward.tolist() == [[1.0, 1.0, 2.0, 2.0]]
    assert enumerate_states(Timed(2)).reward is None


def test_actions_by_agent_in_every_spelling():
    class Spelled(Line):
        def transition_probabilities(self, state, actions):
            return super().transition_probabilities(state, actions)

    for space in (
        SimpleNamespace(n=2),
        lambda agent: SimpleNamespace(n=2),
        [SimpleNamespace(n=2)],
        {"walker": SimpleNamespace(n=2)},
    ):
        model = Spelled(2)
        model.action_space = space
        assert enumerate_states(model).actions == (2,)


# What a model may not do


def fails():
    raise ZeroDivisionError("oh")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ([(0.5, 3), (0.4, 4)], r"state 2, actions \[1\]: the probabilities are \[0.5, 0.4\], with sum 0.9"),
        ([(1.5, 3), (-0.5, 4)], "must be >= 0"),
        ([(float("nan"), 3), (1.0, 4)], "must be >= 0"),
        ([], "with sum 0"),
        ([(1.0, [3])], r"leads to \[3\], a list, .* the same hashable type"),
        ([(1.0, "three")], "a str, but the first state is of type int"),
        ([(1.0, 3.0)], "a float, but the first state is of type int"),
        (None, r"got None in state .* for the actions \[1\], but not for \[0\]"),
        (fails, r"raised ZeroDivisionError: oh \(state 2, actions \[1\]\)"),
        ([0.5, 0.5], r"expected a list of \(probability, successor\)"),
        ([("half", 3)], r"expected a list of \(probability, successor\)"),
        ([(1.0, 1)], "the model has a cycle:\n  1\n  -> 2\n  -> 1\n"),
        ([(0.5, 2), (0.5, 3)], "the model has a cycle:\n  2\n  -> 2\n"),
    ],
)
def test_a_bad_model_is_refused_with_state_and_actions(broken, says):
    with pytest.raises(ModelError, match=says):
        enumerate_states(Line(5, {(2, 1): broken}))


def test_the_traceback_of_the_model_is_the_cause():
    with pytest.raises(ModelError) as caught:
        enumerate_states(Line(5, {(2, 1): fails}))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_unhashable_first_state_is_refused():
    with pytest.raises(ModelError, match=r"the first state, .* cannot be hashed"):
        enumerate_states(Line(start=[0]))


def test_an_unhashable_successor_is_refused():
    model = Line(start=(0,))
    model.transition_probabilities = lambda state, actions: [(0.5, (1, [2])), (0.5, (3,))]
    with pytest.raises(ModelError, match=r"actions \[0\] leads to \(1, \[2\]\), which cannot be hashed"):
        enumerate_states(model)


def test_a_missing_part_of_the_contract_is_named():
    with pytest.raises(ModelError, match="has no get_state"):
        enumerate_states(SimpleNamespace(reset=print))
    with pytest.raises(ModelError, match="no transition_rewards"):
        enumerate_states(Line(), rewards=True)
    model = Line()
    model.human_agent_indices = [0, 3]
    with pytest.raises(ModelError, match="human_agent_indices are"):
        enumerate_states(model)
    with pytest.raises(SettingError, match="workers"):
        enumerate_states(Line(), workers=0)


def test_a_long_cycle_is_shortened():
    with pytest.raises(ModelError, match=r"\(\d+ more\)"):
        enumerate_states(Line(50, {(40, 0): [(1.0, 3)]}))


def test_cycles_may_be_allowed():
    graph = enumerate_states(Line(5, {(4, 0): [(1.0, 1)]}), cycles=True)
    assert graph.levels is None
    assert list(graph.states) == [0, 1, 2, 3, 4, 5]
    assert "with cycles" in repr(graph)


def test_too_many_states_are_refused():
    with pytest.raises(ModelError, match=r"more than 1,000 states \(max_states\)"):
        enumerate_states(Line(10**9), max_states=1000)


def test_too_many_joint_actions_are_refused_before_they_are_listed():
    class Crowd(Line):
        agents = tuple(f"ant_{i}" for i in range(17))
        action_space = SimpleNamespace(n=4)

    with pytest.raises(ModelError, match=r"at most 1,048,576 joint actions, got 17,179,869,184: 17 agents .*ant_16 4"):
        enumerate_states(Crowd())


def test_too_little_memory_is_reported_before_it_is_used_up(monkeypatch):
    monkeypatch.setattr(enumeration_module, "_CHECK_EVERY", 500)
    monkeypatch.setattr(enumeration_module, "available_bytes", lambda: 10)
    grown = count(10**6, 10**6)  # what the interpreter has left from earlier tests would hide the growth
    monkeypatch.setattr(enumeration_module, "resident_bytes", lambda **_: next(grown))
    with pytest.raises(MemoryShortError, match="states found, at about"):
        enumerate_states(Rooms("blocked"))


# Kept on disk


def test_a_graph_is_mapped_as_it_was_saved(tmp_path):
    graph = enumerate_states(Rooms("freeing", horizon=4), rewards=True)
    graph.save(tmp_path / "plans" / "x")
    graph.save(tmp_path / "plans" / "x")  # over an older one
    loaded = Graph.load(tmp_path / "plans" / "x")
    assert sorted(loaded.arrays()) == sorted(graph.arrays())
    for name, array in graph.arrays().items():
        np.testing.assert_array_equal(array, loaded.arrays()[name])
        assert isinstance(loaded.arrays()[name], np.memmap)
    assert list(loaded.states) == list(graph.states)
    assert loaded.states[3:5] == graph.states[3:5]
    assert loaded.states[-1] == graph.states[-1]
    assert loaded.number(graph.states[11]) == 11
    assert [path.name for path in (tmp_path / "plans").iterdir()] == ["x"]
    loaded.save(tmp_path / "again")
    assert list(Graph.load(tmp_path / "again").states) == list(graph.states)


def test_permissions_of_saved_graphs_follow_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        enumerate_states(Line(20)).save(tmp_path / "graph")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "graph").stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "graph").iterdir()} == {0o644}


def test_an_older_graph_stays_if_the_new_one_cannot_be_written(tmp_path, monkeypatch):
    graph = enumerate_states(Line(20))
    graph.save(tmp_path / "x")
    monkeypatch.setattr(np, "save", lambda *_, **__: (_ for _ in ()).throw(OSError("the disk is full")))
    with pytest.raises(OSError, match="the disk is full"):
        enumerate_states(Line(30)).save(tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert list(Graph.load(tmp_path / "x").states) == list(graph.states)


def test_states_that_are_not_plain_need_the_model(tmp_path):
    class Odd(Line):
        def get_state(self):
            return frozenset()

        def transition_probabilities(self, state, actions):
            return None if len(state) == 3 else [(1.0, state | {len(state)})]

    class Coding(Odd):
        def encode_state(self, state):
            return bytes(sorted(state))

        def decode_state(self, data):
            return frozenset(data)

    with pytest.raises(ModelError, match=r"frozenset.*encode_state"):
        enumerate_states(Odd()).save(tmp_path / "odd")
    assert not (tmp_path / "odd").exists()
    graph = enumerate_states(Coding())
    graph.save(tmp_path / "coded")
    with pytest.raises(ModelError, match="give model="):
        Graph.load(tmp_path / "coded")
    assert list(Graph.load(tmp_path / "coded", Coding()).states) == list(graph.states)


def test_folders_without_a_graph_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"no header\.json"):
        Graph.load(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(SettingError, match="choose another path"):
        enumerate_states(Line(2)).save(tmp_path / "mine")
    enumerate_states(Line(2)).save(tmp_path / "line")
    np.save(tmp_path / "line" / "successor.npy", np.array([1, 99], np.int32))
    with pytest.raises(CorruptionError, match="do not fit together"):
        Graph.load(tmp_path / "line")
    (tmp_path / "line" / "successor.npy").write_bytes(b"rubbish")
    with pytest.raises(CorruptionError, match="missing or damaged"):
        Graph.load(tmp_path / "line")


def test_unknown_states_are_refused():
    graph = enumerate_states(Line(2))
    for strange in (99, [1], "x"):
        with pytest.raises(SettingError, match="not among the 3 reachable"):
            graph.number(strange)


def test_progress_is_reported(monkeypatch):
    monkeypatch.setattr("motet.plan.parallel.TICK_S", 0.0)
    told = []
    enumerate_states(Layered(1, depth=4), progress=told.append)
    assert told[-1].done == told[-1].total > 1
    assert told[-1].phase == "enumerate"
    assert [p.done for p in told] == sorted(p.done for p in told)
