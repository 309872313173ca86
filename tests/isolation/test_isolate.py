"""A policy in its own process: same answers, all kinds of spaces, deadlines, nothing in its reach, nothing left."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from support import without_torch

from motet.arrays import ArraySpec
from motet.errors import MotetError, PolicyFailure, SettingError, SpecError, StartError
from motet.isolation import policy as isolate
from motet.isolation.policy import IsolatedPolicy, PolicyLimits
from motet.isolation.usage import _children, descendants
from motet.policy import Policy, PolicySpec, RandomPolicy
from motet.system.memory import Segment

pytestmark = pytest.mark.usefixtures("no_leaks")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="there is a guard on Linux alone")

SEEN, ACTIONS = Box(0, 1, (4,)), Discrete(3)
ZERO = np.zeros(4, np.float32)


class Counts:
    """Has a memory: what it answers depends on all it saw since the reset, and on its random stream."""

    def __init__(self, action_space):
        self.space = action_space

    def reset(self, seed):
        self.total, self.rng = 0.0, np.random.default_rng(seed)

    def act(self, observation, mask=None):
        self.total += sum(float(np.sum(leaf)) for leaf in leaves(observation))
        self.space.seed(int(self.total * 1000) + int(self.rng.integers(1000)))
        return self.space.sample() if mask is None else self.space.sample(mask.astype(np.int8))


def leaves(nest):
    parts = nest.values() if isinstance(nest, dict) else nest if isinstance(nest, tuple) else None
    return [nest] if parts is None else [leaf for part in parts for leaf in leaves(part)]


class Reports:
    """Tells what it finds inside its process."""

    def __init__(self, agent="", world=None, **more):
        self.agent, self.world = agent, world

    def reset(self, seed):
        sys.stdout.write(f"seed {seed}\n")

    def act(self, observation, mask=None):
        lines = [f"agent {self.agent} world {self.world} mask {mask.tolist()}"]
        for number in sorted(os.listdir("/proc/self/fd"), key=int):
            if os.path.exists(f"/proc/self/fd/{number}"):  # not the listing itself
                lines.append(f"fd {number} {os.readlink(f'/proc/self/fd/{number}').partition(':')[0]}")
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "memfd" in line:
                lines.append(f"memory {line.split()[1]} {line.split()[5]}")
        files, core = (resource.getrlimit(which) for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE))
        lines.append(f"files {files} core {core}")
        sys.stdout.write("\n".join(lines) + "\n")
        return 1


class Meets:
    """Answers only when the other one is there too."""

    def __init__(self, mine, other):
        self.mine, self.other = Path(mine), Path(other)

    def reset(self, seed):
        self.step = 0

    def act(self, observation, mask=None):
        self.step += 1
        Path(f"{self.mine}-{self.step}").touch()
        while not Path(f"{self.other}-{self.step}").exists():
            time.sleep(0.001)
        return 2


class Computes:
    """Needs some CPU time of its own, whatever the others do."""

    def __init__(self, cpu_s, start_cpu_s=0.0):
        self.cpu_s = cpu_s
        until = time.process_time() + start_cpu_s
        while time.process_time() < until:
            pass

    def reset(self, seed):
        pass

    def act(self, observation, mask=None):
        until = time.process_time() + self.cpu_s
        while time.process_time() < until:
            pass
        return 0


class Measures:
    """Looks at an observation that is no array."""

    def reset(self, seed):
        pass

    def act(self, observation, mask=None):
        return len(observation["words"]) % 3


def test_an_isolated_policy_has_the_interface_of_a_policy():
    with IsolatedPolicy(PolicySpec(RandomPolicy), SEEN, ACTIONS) as policy:
        assert isinstance(policy, Policy)


NESTED = Dict({"a": Box(-1, 1, (2, 3), np.float64), "b": Tuple((Discrete(5), MultiBinary(4)))})


@pytest.mark.parametrize("seen", [SEEN, Box(0, 255, (3, 5, 5), np.uint8), Discrete(7), NESTED], ids=str)
@pytest.mark.parametrize(
    "actions", [ACTIONS, Discrete(3, start=-1), MultiDiscrete([2, 5]), Box(-1, 1, (2,)), NESTED], ids=str
)
def test_isolated_equals_in_process(seen, actions):
    from motet.world.spaces import action_checker, observation_caster

    spec = PolicySpec(Counts, {"action_space": actions})
    take, give = observation_caster(seen, ""), action_checker(actions)
    seen.seed(3)
    with IsolatedPolicy(spec, seen, actions) as isolated:
        plain = spec.make()
        for episode in range(2):
            isolated.reset(episode)
            plain.reset(episode)
            for _ in range(5):
                observation = take(seen.sample())
                assert_same(isolated.act(observation), give(plain.act(observation)))


def assert_same(one, other):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.asarray(a).dtype == np.asarray(b).dtype


def test_masks_cross():
    with IsolatedPolicy(PolicySpec(RandomPolicy), SEEN, ACTIONS, masked=True) as policy:
        policy.reset(1)
        for only in (0, 2, 1):
            assert policy.act(ZERO, np.arange(3) == only) == only
        with pytest.raises(SpecError, match=r"mask must have one entry for each of 3 actions, got shape \[4\]"):
            policy.act(ZERO, np.ones(4, np.bool_))
        assert policy.act(ZERO) in range(3)
    with pytest.raises(
        SettingError,
        match=r"masked=True is only valid with an action space that can be masked \(got Box\(0\.0, 1\.0, \(2,\)",
    ):
        IsolatedPolicy(PolicySpec(RandomPolicy), SEEN, Box(0, 1, (2,)), masked=True)


@pytest.mark.parametrize("words", [4, 100_000])
def test_observations_that_are_no_arrays_cross_in_pieces(words):
    space = Dict({"words": Text(10)})
    with IsolatedPolicy(PolicySpec(Measures), space, ACTIONS) as policy:
        policy.reset(1)
        for more in range(3):
            assert policy.act({"words": ["motet" * 3] * (words + more)}) == (words + more) % 3


def test_an_observation_of_another_shape_is_refused_and_nothing_is_asked():
    with IsolatedPolicy(PolicySpec(RandomPolicy), SEEN, ACTIONS) as policy:
        policy.reset(1)
        with pytest.raises(SpecError, match=r"shape \[5\]; expected \[4\]"):
            policy.ask(np.zeros(5, np.float32))
        assert policy.act(np.zeros(4)) in range(3)  # float64 that float32 can hold


@LINUX
def test_a_policy_process_has_access_only_to_its_mailbox():
    secret = os.open("/", os.O_RDONLY)  # inherited by nobody
    os.set_inheritable(secret, True)
    other = Segment({"a": ArraySpec((4096,), "uint8")})
    limits = PolicyLimits(open_files=77)
    with IsolatedPolicy(
        PolicySpec(Reports), SEEN, ACTIONS, agent="agent_7", world={"turns": 3}, limits=limits, masked=True
    ) as policy:
        policy.reset(2**64 - 1)
        policy.act(ZERO, np.array([True, False, True]))
    os.close(secret)
    assert other["a"].shape == (4096,)
    lines = policy.output.splitlines()
    assert lines[0] == f"seed {2**64 - 1}"
    assert lines[1] == "agent agent_7 world {'turns': 3} mask [True, False, True]"
    assert [line for line in lines if line.startswith("fd")] == ["fd 0 /dev/null", "fd 1 pipe", "fd 2 pipe"]
    assert [line for line in lines if line.startswith("memory")] == ["memory rw-s /memfd:motet"]
    assert lines[-1] == "files (77, 77) core (0, 0)"


@LINUX
def test_its_memory_is_sealed():
    segment = Segment({"a": ArraySpec((4096,), "uint8")}, sealed=True)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(segment._fd, size)


def test_the_parent_never_imports_the_policys_module(tmp_path, monkeypatch):
    (tmp_path / "their_policy.py").write_text(
        "class Theirs:\n    def reset(self, seed): pass\n    def act(self, observation): return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with IsolatedPolicy(PolicySpec("their_policy:Theirs"), SEEN, ACTIONS) as policy:
        policy.reset(1)
        assert policy.act(ZERO) == 1
    assert "their_policy" not in sys.modules
    with IsolatedPolicy(PolicySpec("no_such_policy:Theirs"), SEEN, ACTIONS) as policy:
        with pytest.raises(PolicyFailure, match="no module 'no_such_policy'") as failure:
            policy.answer()
        assert failure.value.cause == "start"


def test_all_are_asked_before_any_is_awaited(tmp_path):
    names = [str(tmp_path / name) for name in ("a", "b")]
    policies = [
        IsolatedPolicy(PolicySpec(Meets, {"mine": m, "other": o}), SEEN, ACTIONS) for m, o in (names, names[::-1])
    ]
    for ask in (lambda policy: policy.ask_reset(1), *[lambda policy: policy.ask(ZERO)] * 3):
        for policy in policies:
            ask(policy)
        assert [policy.answer() for policy in policies] in ([None, None], [2, 2])
    for policy in policies:
        policy.close()


@LINUX
def test_a_busy_neighbour_cannot_make_an_honest_one_late():
    """Three busy loops for each core: it gets a fourth of the time it would need on a clock on the wall."""
    count = 3 * len(os.sched_getaffinity(0))
    busy = [IsolatedPolicy(PolicySpec("support.hostile_zoo:Busy"), SEEN, ACTIONS) for _ in range(count)]
    for policy in busy:
        policy.reset(1)
        policy.ask(ZERO)
    limits = PolicyLimits(decision_s=0.45)
    with IsolatedPolicy(PolicySpec(Computes, {"cpu_s": 0.3}), SEEN, ACTIONS, limits=limits) as policy:
        policy.reset(1)
        for _ in range(2):
            assert policy.act(ZERO) == 0
    for policy in busy:
        policy.close()


@LINUX
def test_the_cpu_limit_applies_to_each_decision_separately():
    limits = PolicyLimits(cpu_s=0.3)
    with IsolatedPolicy(PolicySpec(Computes, {"cpu_s": 0.1}), SEEN, ACTIONS, limits=limits) as policy:
        policy.reset(1)
        assert [policy.act(ZERO) for _ in range(5)] == [0] * 5


@LINUX
def test_cpu_time_above_the_budget_counts_even_if_no_check_saw_it():
    limits = PolicyLimits(cpu_s=0.01)
    with IsolatedPolicy(PolicySpec(Computes, {"cpu_s": 0.015}), SEEN, ACTIONS, limits=limits) as policy:
        policy.reset(1)
        policy.ask(ZERO)
        time.sleep(0.2)
        with pytest.raises(PolicyFailure) as failure:
            policy.answer()
        assert failure.value.cause == "cpu"


@LINUX
def test_cpu_time_of_the_start_does_not_count_for_a_decision():
    spec = PolicySpec(Computes, {"cpu_s": 0.0, "start_cpu_s": 1.0})
    with IsolatedPolicy(spec, SEEN, ACTIONS, limits=PolicyLimits(cpu_s=0.5)) as policy:
        assert [policy.act(ZERO) for _ in range(3)] == [0] * 3


@pytest.mark.skipif(bool(isolate.sandbox_gaps()), reason="needs a sandbox")
def test_a_process_that_cannot_be_started_leaves_no_folder_and_can_be_replaced_later(tmp_path, monkeypatch):
    monkeypatch.setattr(isolate.tempfile, "tempdir", str(tmp_path))
    policy = IsolatedPolicy(PolicySpec(RandomPolicy), SEEN, ACTIONS, sandbox="strict")
    policy.reset(1)
    with monkeypatch.context() as patch:
        patch.setattr("motet.isolation.handle.Child", lambda *_: (_ for _ in ()).throw(StartError("no room")))
        for _ in range(2):
            with pytest.raises(StartError, match="no room"):
                policy.replace()
        with pytest.raises(MotetError, match="there is no question to answer"):
            policy.answer()
        with pytest.raises(MotetError, match=r"its process has ended; call replace\(\) to start a new one"):
            policy.ask(ZERO)
        assert list(tmp_path.iterdir()) == []
    policy.replace()
    policy.reset(1)
    assert policy.act(ZERO) in range(3)
    policy.close()


def test_one_question_at_a_time():
    policy = IsolatedPolicy(PolicySpec(RandomPolicy), SEEN, ACTIONS)
    assert policy.answer() is None  # the start
    with pytest.raises(MotetError, match="no question to answer"):
        policy.answer()
    policy.ask_reset(1)
    with pytest.raises(MotetError, match=r"answer\(\) first"):
        policy.ask(ZERO)
    policy.answer()
    with pytest.raises(SettingError, match=r"seed must be an int from 0 to 2\*\*64 - 1, got -1"):
        policy.ask_reset(-1)
    policy.close()
    policy.close()
    with pytest.raises(MotetError, match="replace"):
        policy.ask(ZERO)
    policy.replace()
    policy.reset(1)
    assert policy.act(ZERO) in range(3)
    policy.close()


@pytest.mark.parametrize(
    "wrong",
    [{"start_s": 0}, {"decision_s": float("inf")}, {"reset_s": float("nan")}, {"cpu_s": -1.0}, {"memory_bytes": 10},
     {"open_files": 3}, {"output_bytes": 0}],
)  # fmt: skip
def test_limits_are_checked_when_made(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        PolicyLimits(**wrong)


def test_without_a_guard_the_process_itself_is_limited(monkeypatch):
    """What there is elsewhere than on Linux."""
    monkeypatch.setattr(isolate, "_GUARDED", False)
    with IsolatedPolicy(PolicySpec("support.hostile_zoo:Prints", {"at": 1}), SEEN, ACTIONS) as policy:
        policy.reset(1)
        assert [policy.act(ZERO) in range(3) for _ in range(2)] == [True, True]
        assert "all work and no play" in policy.output
    for name, cause in (("Sleeps", "timeout"), ("LeavesQuietly", "died"), ("Raises", "exception")):
        limits = PolicyLimits(decision_s=0.3 if name == "Sleeps" else 60)
        with IsolatedPolicy(PolicySpec(f"support.hostile_zoo:{name}"), SEEN, ACTIONS, limits=limits) as policy:
            policy.reset(1)
            with pytest.raises(PolicyFailure) as failure:
                policy.act(ZERO)
            assert failure.value.cause == cause


PARENT = textwrap.dedent("""
    import sys, time
    import numpy as np
    from gymnasium.spaces import Box, Discrete
    from motet.isolation.policy import IsolatedPolicy
    from motet.policy import PolicySpec

    if __name__ == "__main__":
        names = sys.argv[1:]
        policies = [IsolatedPolicy(PolicySpec(f"support.hostile_zoo:{n}"), Box(0, 1, (4,)), Discrete(3)) for n in names]
        for policy in policies:
            policy.reset(1)
            policy.ask(np.zeros(4, "float32"))
        print("ready", flush=True)
        time.sleep(1e6)
""")


@LINUX
@pytest.mark.parametrize(
    ("how", "way"),
    [
        *((how, "") for how in ("killed", "killed while all are stopped", "dropped", "over")),
        ("killed while all are stopped", "standard"),
        *(pytest.param(how, "standard", marks=pytest.mark.slow) for how in ("killed", "dropped", "over")),
    ],
)
def test_all_policy_processes_die_with_their_parent(how, way, tmp_path):
    script = tmp_path / "parent.py"
    last = {"dropped": "del policies, policy; input()", "over": "input()"}.get(how, "time.sleep(1e6)")
    script.write_text(PARENT.replace("time.sleep(1e6)", last))
    parent = subprocess.Popen(
        [sys.executable, script, "Forks", "IgnoresSigterm", "Honest"],
        env=without_torch(MOTET_START=way), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    try:
        if how != "dropped":
            eventually(
                lambda: len(descendants(parent.pid)) >= 3 + 3 + 3
            )  # guards, policies, and what one of them forked
        below = descendants(parent.pid)
        if how == "dropped":  # the parent lives on; the fork server and the tracker with it
            eventually(lambda: len(descendants(parent.pid)) <= 2)
            return
        if how == "over":  # without closing anything
            assert parent.stdin is not None
            parent.communicate("\n", timeout=120)
            assert parent.returncode == 0
        if "stopped" in how:
            servers = set(_children(parent.pid))
            for pid in below:
                if pid not in servers:
                    os.kill(pid, signal.SIGSTOP)
    finally:
        parent.kill()
        parent.wait(60)
        parent.stdout.close()
        parent.stdin.close()
    eventually(lambda: not [pid for pid in below if _state(pid) not in (None, "Z")])


def eventually(holds, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
