"""Hostile policies: each of them fails with the right cause, has ended by then, and leaves nothing behind."""

import os
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from support.family import runs

from motet.errors import PolicyFailure
from motet.isolation.policy import IsolatedPolicy, PolicyLimits, sandbox_gaps
from motet.isolation.usage import descendants
from motet.policy import PolicySpec

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="the guard needs Linux"),
]

SEEN, ACTIONS = Box(0, 1, (4,)), Discrete(3)
BOX = Box(-1, 1, (2,))
OBSERVATION = np.zeros(4, np.float32)
SHORT = {"start_s": 20.0, "reset_s": 5.0, "decision_s": 0.3}
PATIENT = {"decision_s": 60.0}

CASES = {
    # name: (cause, what its detail says, limits, sandbox, actions)
    "Sleeps": ("timeout", "no decision within 0.3 s", {}, "no", ACTIONS),
    "IgnoresSigterm": ("timeout", "no decision", {}, "no", ACTIONS),
    "Stops": ("timeout", "no decision", {}, "no", ACTIONS),
    "Busy": ("timeout", "no decision", {}, "no", ACTIONS),
    "StartsForEver": ("timeout", "no start within 0.3 s", {"start_s": 0.3}, "no", ACTIONS),
    "BusyThreads": ("cpu", "more than 0.2 s", {"cpu_s": 0.2, **PATIENT}, "no", ACTIONS),
    "BusyChild": ("cpu", "more than 0.2 s", {"cpu_s": 0.2, **PATIENT}, "no", ACTIONS),
    "RaisesAtStart": ("start", "ValueError: not today", {}, "no", ACTIONS),
    "RaisesAtReset": ("reset", "ValueError: no new episode", {}, "no", ACTIONS),
    "Raises": ("exception", "ValueError: I had enough[2J\n", {}, "no", ACTIONS),
    "RaisesTheUnprintable": ("exception", "Worse", {}, "no", ACTIONS),
    "LeavesQuietly": ("died", "ended with exit code 3", PATIENT, "no", ACTIONS),
    "KillsItself": ("died", "killed by SIGKILL", PATIENT, "no", ACTIONS),
    "Crashes": ("died", "killed by SIGSEGV", PATIENT, "no", ACTIONS),
    "EatsMemory": ("memory", "more than 300.0 MiB", {"memory_bytes": 300 << 20, **PATIENT}, "no", ACTIONS),
    "EatsMemoryInAChild": ("memory", "more than 300.0 MiB", {"memory_bytes": 300 << 20, **PATIENT}, "no", ACTIONS),
    "AnswersNan": ("answer", "nan", {}, "no", BOX),
    "AnswersTheWrongShape": ("answer", "[7]; expected [2]", {}, "no", BOX),
    "AnswersOutOfBounds": ("answer", "the action is 3; expected 0 to 2", {}, "no", ACTIONS),
    "AnswersText": ("answer", "left, please", {}, "no", ACTIONS),
    "AnswersABomb": ("answer", "Bomb", {}, "no", ACTIONS),
    "Forks": ("timeout", "no decision", {"decision_s": 3.0}, "no", ACTIONS),
    "ForksAndLeaves": ("died", "ended with exit code 0", PATIENT, "no", ACTIONS),
    "Multiplies": ("refused", "more than 32 threads and processes", {"tasks": 32, **PATIENT}, "no", ACTIONS),
    "StartsThreads": ("refused", "more than 40 threads and processes", {"tasks": 40, **PATIENT}, "no", ACTIONS),
    "LowersItsParentsLimits": ("refused", "it changed the limits of its guard", PATIENT, "no", ACTIONS),
    "KillsItsParent": ("died", "killed together with its guard", PATIENT, "no", ACTIONS),
    "ForgesNan": ("answer", "nan", PATIENT, "no", BOX),
    "ForgesLengths": ("exception", "", PATIENT, "no", ACTIONS),
    "ForgesAsksForMore": ("answer", "its state is unknown", PATIENT, "no", ACTIONS),
    "Rings": ("answer", "rings the bell without answering", PATIENT, "no", ACTIONS),
    "RingsSlowly": ("timeout", "no decision", {}, "no", ACTIONS),
    "RingsABomb": ("exception", "", PATIENT, "no", ACTIONS),
    "OpensASocket": ("refused", "PermissionError", PATIENT, "strict", ACTIONS),
    "WritesHome": ("refused", "PermissionError", PATIENT, "strict", ACTIONS),
}
IN_SANDBOX = {  # the same ones, where they are not allowed to try
    "KillsItsParent": ("refused", "PermissionError", PATIENT, "strict", ACTIONS),
    "Forks": ("refused", "PermissionError", PATIENT, "strict", ACTIONS),
    "Multiplies": ("refused", "PermissionError", PATIENT, "strict", ACTIONS),
    "KillsItself": ("died", "killed by SIGKILL", PATIENT, "strict", ACTIONS),
    "StartsThreads": ("refused", "more than 40 threads and processes", {"tasks": 40, **PATIENT}, "strict", ACTIONS),
    "LowersItsParentsLimits": ("refused", "PermissionError", PATIENT, "strict", ACTIONS),
    "Sleeps": ("timeout", "no decision within 0.3 s", {}, "strict", ACTIONS),
    "EatsMemory": ("memory", "more than 300.0 MiB", {"memory_bytes": 300 << 20, **PATIENT}, "strict", ACTIONS),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [*CASES.items(), *IN_SANDBOX.items()],
    ids=[*CASES, *(f"{name}-sandboxed" for name in IN_SANDBOX)],
)
def test_hostile_policies_fail_with_their_cause_and_their_processes_end(name, case, tmp_path, monkeypatch):
    cause, detail, limits, sandbox, actions = case
    if sandbox != "no" and sandbox_gaps():
        pytest.skip("; ".join(sandbox_gaps()))
    monkeypatch.chdir(tmp_path)  # where bombs would go off
    at = 0 if "Raises" not in name else 7
    arguments = {"at": at} if name not in ("RaisesAtStart", "StartsForEver") else {}
    before = set(descendants(os.getpid()))
    policy = IsolatedPolicy(
        PolicySpec(f"support.hostile_zoo:{name}", arguments),
        SEEN,
        actions,
        agent="agent_0",
        limits=PolicyLimits(**SHORT | limits),
        sandbox=sandbox,
    )
    with policy, pytest.raises(PolicyFailure) as failure:
        policy.reset(1)
        for _ in range(at):
            assert policy.act(OBSERVATION) in range(3)
        policy.act(OBSERVATION)
    assert failure.value.cause == cause, failure.value
    assert detail in failure.value.detail
    assert set(descendants(os.getpid())) <= before | _servers()
    left = [int(line.split()[-1]) for line in policy.output.splitlines() if line.startswith("left behind")]
    assert len(left) == (3 if name.startswith("Forks") and sandbox == "no" else 0)
    assert not [pid for pid in left if runs(pid)]  # wherever they have gone
    assert list(tmp_path.iterdir()) == []
    assert policy.output.isprintable() or "\n" in policy.output


def test_daemons_of_a_policy_that_killed_its_guard_are_killed(tmp_path):
    policy = IsolatedPolicy(
        PolicySpec("support.hostile_zoo:LeavesDaemonsAndKillsItsParent", {"folder": str(tmp_path)}), SEEN, ACTIONS
    )
    with policy, pytest.raises(PolicyFailure, match="killed together with its guard"):
        policy.reset(1)
        policy.act(OBSERVATION)
    (daemon,) = tmp_path.iterdir()
    assert not runs(int(daemon.name))


def _servers() -> set[int]:
    """The fork server and the resource tracker stay."""
    from multiprocessing import forkserver, resource_tracker

    return {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}


@pytest.mark.parametrize("name", ["Prints", "ClosesEverything"])
def test_output_is_not_a_failure(name):
    with IsolatedPolicy(
        PolicySpec(f"support.hostile_zoo:{name}"), SEEN, ACTIONS, limits=PolicyLimits(output_bytes=2000)
    ) as policy:
        policy.reset(1)
        assert policy.act(OBSERVATION) in range(3)
        assert policy.act(OBSERVATION) in range(3)
    if name == "Prints":
        assert "all work and no play\n" in policy.output
        assert policy.output.endswith("the end\n")
        assert len(policy.output) <= 2000
        assert "\x1b" not in policy.output


def test_scribbling_over_all_of_its_memory_affects_only_the_policy():
    """What it will be taken for is up to chance; never an answer outside of the space, never an error of the parent."""
    for _ in range(3):
        with IsolatedPolicy(
            PolicySpec("support.hostile_zoo:Scribbles"), SEEN, ACTIONS, limits=PolicyLimits(**SHORT)
        ) as policy:
            policy.reset(1)
            try:
                for _ in range(100):
                    assert policy.act(OBSERVATION) in range(3)
            except PolicyFailure as failure:
                assert failure.cause in ("answer", "exception", "refused", "timeout", "died")


def test_a_policy_after_a_failure_behaves_like_a_new_one():
    expected = _play(IsolatedPolicy(PolicySpec("support.hostile_zoo:Honest"), SEEN, ACTIONS), 7)
    policy = IsolatedPolicy(PolicySpec("support.hostile_zoo:Raises", {"at": 7}), SEEN, ACTIONS)
    for _ in range(2):
        policy.reset(5)
        assert [policy.act(OBSERVATION) for _ in range(7)] == expected
        with pytest.raises(PolicyFailure):
            policy.act(OBSERVATION)
        policy.replace()
    policy.close()


def _play(policy: IsolatedPolicy, steps: int) -> list[int]:
    with policy:
        policy.reset(5)
        return [policy.act(OBSERVATION) for _ in range(steps)]
