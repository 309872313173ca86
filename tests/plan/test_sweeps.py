"""Sweeps shared with simulated other machines: the same bits if machines are ready, late or lost."""

import pickle
from contextlib import nullcontext

import numpy as np
import pytest
from support.small_models import Parity, Round, Wide, believed, wanted

from motet.errors import ModelError, WorkerLostError
from motet.plan import Goal, Humans, Robot, best_response, enumerate_states, evaluate_robot, induction, solve
from motet.plan import sweeps as _sweeps
from motet.plan.parallel import WorkerTeam, _start_here


class Nearby:
    """Machines that are none: parts travel as bytes, and are swept when they are asked for.

    Args:
        rooms: threads of each.
        late: looks at each until it is up.
        lost: questions, counted over all, at which the one who is asked is gone.
        starts: how many may be started, successors too.
    """

    def __init__(self, rooms=(1, 2), late=0, lost=(), starts=100):
        self.rooms, self.late, self.lost, self.starts = rooms, late, lost, starts
        self.spans, self.told, self.alive = [], 0, 0

    def sweeper(self, place, part):
        if self.starts == 0:
            return None
        self.starts -= 1
        return Near(self, pickle.loads(pickle.dumps(part())))  # noqa: S301 - our own

    def share(self, news):
        self.told += sum(len(rows) for _, rows in news.values())
        return pickle.dumps(news)


class Near:
    def __init__(self, machines, part):
        self.machines, self.part, self.looks = machines, part, machines.late
        self.arrays = part.arrays()
        self.run = part.make(self.arrays)
        machines.alive += 1

    def up(self):
        self.looks -= 1
        return None if self.looks >= 0 else 1e9

    def ask(self, first, last, news):
        self.machines.spans.append((first, last))
        self.gone = len(self.machines.spans) in self.machines.lost
        for name, (begin, rows) in pickle.loads(news).items():  # noqa: S301 - our own
            self.arrays[name][begin : begin + len(rows)] = rows
        self.span = first, last

    def answer(self, timeout_s):
        if self.gone:
            raise WorkerLostError("it was here a moment ago")
        first, last = self.span
        return [self.run(first, last)], {name: self.arrays[name][first:last] for name in self.part.writes}

    def close(self):
        self.machines.alive -= 1


@pytest.fixture
def use(monkeypatch):
    """Has plans use machines, for every level that is large enough, whether it pays or not."""
    monkeypatch.setattr(_sweeps, "START_S", 0.0)
    monkeypatch.setattr(_sweeps, "GAIN", 0.0)
    monkeypatch.setattr(induction, "_FEW_ENTRIES", 1)

    def use(machines):
        for module in ("induction", "empowerment"):
            monkeypatch.setattr(
                f"motet.plan.{module}.worker_team", lambda *_: nullcontext(WorkerTeam(2, _start_here, machines))
            )

    return use


@pytest.fixture(scope="module")
def wide():
    return enumerate_states(Wide(), workers=1, rewards=True)


PLAIN = {"goals": [Parity("even", 0), Parity("odd", 1)]}
ALL = {
    "goals": wanted,
    "humans": Humans(rho=0.1, believed_others_policy=believed, robot="mean"),
    "robot": Robot(rho=0.2),
    "dtype": "float16",
}


@pytest.mark.parametrize("chosen", [PLAIN, ALL], ids=["plain", "all"])
@pytest.mark.parametrize(
    "machines",
    [{}, {"late": 1}, {"lost": (1, 4)}, {"lost": (2,), "starts": 2}, {"rooms": (7, 1, 1)}],
    ids=["up", "late", "lost", "no room", "three"],
)
def test_the_bits_do_not_depend_on_which_machine_sweeps(use, wide, chosen, machines):
    here = solve(wide, **chosen, workers=1)
    others = Nearby(**machines)
    use(others)
    there = solve(wide, **chosen)
    for name, array in here.arrays.items():
        assert array.tobytes() == there.arrays[name].tobytes(), name
    assert others.spans and others.alive == 0


def test_given_policies_are_sent_too(use, wide):
    rng = np.random.default_rng(0)
    humans = {human: rng.dirichlet(np.ones(2), len(wide)) for human in wide.humans}
    given = {**PLAIN, "humans": humans, "robot": rng.dirichlet(np.ones(2), len(wide))}
    here = evaluate_robot(wide, **given, workers=1)
    others = Nearby(lost=(2,))
    use(others)
    there = evaluate_robot(wide, **given)
    for name, array in here.arrays.items():
        assert array.tobytes() == there.arrays[name].tobytes(), name
    assert others.spans and others.alive == 0


def test_a_machine_gets_its_own_states_and_each_row_once(use, wide):
    others = Nearby(rooms=(2,))
    use(others)
    solve(wide, **PLAIN, robot=None)
    large = [(a, b) for a, b in zip(wide.levels[:-1], wide.levels[1:], strict=True) if b - a >= _sweeps.FEW]
    assert others.spans == [((a + b) // 2, b) for a, b in reversed(large)]
    assert others.told == len(wide) - large[0][1]  # whatever lies behind the first level that is shared last


@pytest.mark.parametrize("horizon", [None, 4])
def test_responses_too(use, wide, horizon):
    graph = wide if horizon is None else enumerate_states(Round(), workers=1, cycles=True, rewards=True)
    here = best_response(graph, "a", gamma=0.9, horizon=horizon, workers=1)
    others = Nearby(lost=(3,))
    use(others)
    there = best_response(graph, "a", gamma=0.9, horizon=horizon)
    assert others.spans and others.alive == 0
    assert (here.value.tobytes(), here.choice.tobytes()) == (there.value.tobytes(), there.choice.tobytes())


def test_repeated_losses_of_a_machine_end_the_job(use, wide):
    others = Nearby(rooms=(1,), lost=(1, 2, 3))
    use(others)
    with pytest.raises(WorkerLostError, match="it was here a moment ago"):
        solve(wide, **PLAIN)
    assert others.alive == 0


class Never:
    name = "never"

    def is_achieved(self, state):
        return False


@pytest.mark.parametrize("early", [True, False])
def test_the_state_at_fault_is_the_one_that_is_found_alone(use, wide, early, monkeypatch):
    assert isinstance(Never(), Goal)
    if not early:  # then the sweeps find it
        monkeypatch.setattr("motet.plan.empowerment.check_coverage", lambda *_: None)
    with pytest.raises(ModelError, match="X_h of a is 0") as here:
        solve(wide, [Never()], workers=1)
    use(Nearby())
    with pytest.raises(ModelError) as there:
        solve(wide, [Never()])
    assert str(here.value) == str(there.value)


@pytest.mark.parametrize(("bytes_s", "second", "pays"), [(1e8, 1e-5, False), (1e9, 1e-4, True), (1e9, 1e-8, False)])
def test_a_level_is_shared_if_the_way_there_is_shorter_than_the_work(wide, bytes_s, second, pays):
    states = len(wide)
    arrays = {"value": np.zeros((states, 32)), "policy": np.zeros((states, 128))}
    backup = _sweeps.Backup(
        lambda arrays: None, arrays, (), (), (), ("value",),
        ("value", "policy"),
    )  # fmt: skip
    shared = _sweeps._Spread(backup, states, [(0, states)], Nearby((4,)), None, (4, 4), 256)
    shared.second = second
    assert (shared.gain(10_000, bytes_s) >= _sweeps.GAIN) is pays
