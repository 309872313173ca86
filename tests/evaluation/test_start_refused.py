"""Policy processes that cannot be started, and evaluation in the caller's process."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
from gymnasium.spaces import Box, Discrete
from support import playing_policies as playing

import motet
from motet.errors import SettingError, StartError
from motet.evaluation.episode import Arena, EpisodePlan, Task
from motet.evaluation.evaluate import EvaluationSettings
from motet.isolation import process
from motet.isolation.policy import IsolatedPolicy, PolicyLimits
from motet.policies.entries import entries
from motet.policy import PolicySpec
from motet.system import fork_server
from motet.system.supervisor import RestartLimits
from motet.worlds import MatrixGame

SEATS = ("player_0", "player_1")


@pytest.fixture
def arena(monkeypatch):
    """Arenas with isolated policies on two seats; the first ``refusals`` processes are refused to player_0."""
    monkeypatch.setattr(RestartLimits, "pause_s", lambda self, restarts: 0.0)
    found = {"refusals": 0, "tried": 0, "opened": []}
    start = IsolatedPolicy._start_process

    def refuse(policy):
        if policy._name.endswith("player_0"):
            found["tried"] += 1
            if found["tried"] <= found["refusals"]:
                raise StartError("policy could not be started: Resource temporarily unavailable")
        start(policy)

    monkeypatch.setattr(IsolatedPolicy, "_start_process", refuse)

    def make(refusals, **more):
        found["refusals"], found["tried"] = refusals, 0
        chosen = entries(dict.fromkeys(SEATS, playing.Counting), SEATS)
        arena = Arena(EpisodePlan(MatrixGame, {}, chosen, (True, True), **more))
        found["opened"].append(arena)
        return arena

    yield make
    for one in found["opened"]:
        one.close()


def played(arena, number=0):
    return arena.play(Task(number, (0, 1), (number,)))


def test_a_refused_process_is_tried_again(arena):
    once, never = played(arena(3)), played(arena(0))
    assert once.failures == () and once.returns == never.returns


def test_a_process_that_cannot_be_started_affects_only_its_agent(arena):
    made = arena(RestartLimits().restarts)
    first, second = played(made), played(made, 1)
    (failure,) = first.failures
    assert (failure.cause, failure.agents, failure.turn) == ("start", ("player_0",), 0)
    assert "Resource temporarily unavailable" in failure.detail
    assert first.decisions[1] == 100 and second.failures == ()


def test_fall_back_plays_in_process_with_the_same_result(arena):
    here, there = played(arena(999, fall_back=True)), played(arena(0, fall_back=True))
    assert (here.failures, here.fell_back, there.fell_back) == ((), (0,), ())
    assert here.returns == there.returns


def test_fall_back_is_recorded_in_measured_only(monkeypatch):
    game = motet.evaluation.game.Game.of(MatrixGame, ["random", "noop"], EvaluationSettings())
    plan, _ = game.plan(game.fullest, EvaluationSettings(isolate=True, fall_back=True), print)
    assert plan.fall_back
    one = Arena(EpisodePlan(MatrixGame, {}, game.entries, (False, False))).play(Task(0, (0, 1), (0,)))
    one.fell_back = (1,)
    assert game.measured([one, one], 1.0, 1, plan, []).fell_back == {"noop": 2}
    assert "fell_back" not in str(game.episode(one))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fall_back": True}, "fall_back is only valid with isolate=True"),
        ({"fall_back": True, "isolate": True, "sandbox": "strict"}, "sandbox is not valid with fall_back"),
        ({"fall_back": True, "isolate": True, "limits": PolicyLimits()}, "limits is not valid with fall_back"),
        ({"engine": "serial", "isolate": True}, "isolate is not valid with engine='serial'"),
        ({"engine": "serial", "sandbox": "strict"}, "sandbox is not valid with engine='serial'"),
        ({"engine": "serial", "limits": PolicyLimits()}, "limits is not valid with engine='serial'"),
        ({"engine": "serial", "jobs": 2}, "jobs > 1 is not valid with engine='serial'"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(SettingError, match=message):
        EvaluationSettings(**changes)


@pytest.mark.parametrize("settings", [{"engine": "serial"}, {"fall_back": True, "isolate": True}])
def test_isolate_yes_of_a_policy_is_refused(settings):
    with pytest.raises(SettingError, match="isolate=yes of noop is not valid with"):
        motet.evaluate(MatrixGame, ["random", "noop,isolate=yes"], **settings)


# ---- in the caller's process


class NotesItsProcess(playing.Counting):
    seen = ()

    def act(self, observation, mask=None):
        self.seen.append(os.getpid())
        return super().act(observation, mask)


def test_serial_plays_in_this_process(monkeypatch):
    monkeypatch.setattr(NotesItsProcess, "seen", [])
    motet.evaluate(MatrixGame, NotesItsProcess, episodes=1, engine="serial")
    assert set(NotesItsProcess.seen) == {os.getpid()} and len(NotesItsProcess.seen) == 200


POLICIES = [
    playing.Recurrent,
    "support.playing_policies:FailsAt,kw.turn=3,kw.every=2",
    "support.hostile_zoo:Interrupts",
]


def test_serial_gives_the_result_of_processes():
    results = [
        motet.evaluate(MatrixGame, POLICIES, episodes=6, max_failures=2, engine=engine)
        for engine in ("serial", "processes")
    ]
    assert results[0].failures() and results[0].out
    assert results[0].deterministic() == results[1].deterministic()


class PressesCtrlC(playing.Counting):
    """As a user does who has waited long enough."""

    def act(self, observation, mask=None):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return 0


def test_a_second_ctrl_c_ends_a_serial_evaluation_at_once():
    with pytest.raises(KeyboardInterrupt):
        motet.evaluate(MatrixGame, PressesCtrlC, episodes=3, engine="serial")


def test_a_serial_tournament_gives_the_result_of_processes():
    first, second = (
        motet.tournament(MatrixGame, ["tit_for_tat", "random"], rounds=2, engine=engine)
        for engine in ("serial", "processes")
    )
    assert first.deterministic() == second.deterministic()


def test_the_system_refuses_to_fork_a_policy(monkeypatch):
    """The guard tries again, and then reports it: the failure has the cause ``start``."""
    sent, calls = [], []

    class Pipe:
        def poll(self, timeout_s):
            return False

        def send_bytes(self, message):
            sent.append(message)

    class Over(Exception):
        pass

    def no_fork():
        calls.append(1)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(process.os, "fork", no_fork)
    monkeypatch.setattr(process.os, "_exit", lambda code: (_ for _ in ()).throw(Over))

    mailbox = SimpleNamespace(answered=SimpleNamespace(ring=lambda: None))
    with pytest.raises(Over):
        process._fork(mailbox, Pipe(), SimpleNamespace(sandbox=None, grouped=False))
    assert len(calls) == RestartLimits().restarts
    assert process.MESSAGE.unpack(sent[0]) == (process.REFUSED, 11)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds")
def test_policies_survive_the_death_of_the_server_that_started_them():
    """A server that may not fork ends. What it has started before goes on."""
    with IsolatedPolicy(PolicySpec(playing.Counting), Box(0, 1, (4,)), Discrete(3), agent="a") as policy:
        policy.reset(1)
        server = fork_server.number()
        assert server is not None
        os.kill(server, signal.SIGKILL)
        policy._process._child._process.join(10)
        assert policy.act([0.0] * 4) in range(3)
        assert policy._process.hear() is None
