"""How waiters learn when to spin: the native code in simulated time."""

import shutil
import subprocess

import pytest
from support import ROOT

COMPILER = shutil.which("g++") or shutil.which("clang++")
US = 1000


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The share of slow round trips, and the share of time spent in spins that failed."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path_factory.mktemp("spin") / "spin"
    source = ROOT / "tests" / "native" / "spin.cpp"
    subprocess.run([COMPILER, "-std=c++17", "-O1", "-I", ROOT / "src" / "native", source, "-o", program], check=True)

    def run(wake_ns, work_ns, shared=False, rounds=20_000):
        done = subprocess.run(
            [program, *map(str, (wake_ns, work_ns, int(shared), rounds))], check=True, capture_output=True, text=True
        )
        return tuple(map(float, done.stdout.split()))

    return run


@pytest.mark.parametrize("wake_us", [5, 50, 105, 150, 200])
def test_peers_that_both_sleep_find_out_that_both_could_spin(simulated, wake_us):
    """However long it takes to wake a core. With a constant retry of 100 us all are slow from 105 us on."""
    slow, _ = simulated(wake_us * US, 2 * US)
    assert slow == 0


@pytest.mark.parametrize("wake_us", [5, 50, 150])
def test_peers_on_one_core_hardly_spin(simulated, wake_us):
    _, wasted = simulated(wake_us * US, 2 * US, shared=True)
    assert wasted < 0.05


@pytest.mark.parametrize("work_us", [600, 5000])
def test_a_slow_peer_is_not_waited_for_by_spinning(simulated, work_us):
    _, wasted = simulated(50 * US, work_us * US)
    assert wasted < 0.02
