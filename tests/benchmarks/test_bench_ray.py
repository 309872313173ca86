"""``motet bench ray``: what RLlib is asked, and what is made of its answers. Never how fast anything is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import Result
from benchmarks import ray as bench
from benchmarks.spread import DQN, OPTIMISER_STEPS, job, ppo, spread
from motet.errors import MotetError, SettingError

PROGRAM = Path(bench.__file__).with_name("rllib.py")

# Stands where the interpreter with RLlib is expected: its arguments are options, the program, and perhaps a job.
STAND_IN = """#!{python}
import json, sys
*options, last = sys.argv[1:]
assert "-P" in options, "beside the program lies a module called ray, which must not be found"
if last.endswith("rllib.py"):
    print(json.dumps({versions}))
    sys.exit()
job = json.loads(last)
open({log!r}, "a").write(last + "\\n")
rate = {{"ppo": 100.0, "dqn": 10.0}}[job["kind"]] * (1 + (job["runners"] == 1)) * job["envs"]
print("what RLlib says of itself")
print(json.dumps({{"steps_per_s": rate, "updates_per_agent_and_step": 0.5, "rows_per_update": 64.0}}))
"""


def stand_in(folder: Path, versions: dict[str, Any] | None = None) -> tuple[bench._Peer, Path]:
    path, log = folder / "python", folder / "jobs"
    path.write_text(STAND_IN.format(python=sys.executable, versions=versions or {"ray": "9.9"}, log=str(log)))
    path.chmod(0o755)
    return bench._Peer(path), log


def compared(peer: bench._Peer) -> Result:
    result = Result("ray", bench.MEASURES, bench.COMPARISONS, amounts=bench.AMOUNTS)
    bench._against_rllib(result, peer, bench.SETUPS, seconds=2.0, repeats=3)
    return result


@pytest.fixture(autouse=True)
def quick_motet(monkeypatch: pytest.MonkeyPatch) -> None:
    def motet(kind: str, setup: bench.Setup, seconds: float) -> dict[str, float]:
        return {"steps_per_s": 1000.0 * setup.processes * setup.worlds, "updates_per_agent_and_step": 0.25}

    monkeypatch.setattr(bench, "_motet", motet)


def test_each_side_is_measured_in_its_fastest_way(tmp_path: Path) -> None:
    peer, log = stand_in(tmp_path)
    result = compared(peer)
    # motet: 2 processes with 16 worlds; RLlib: 1 env runner with 32 envs.
    assert result.values == {"vs_rllib_ppo": 32_000 / 6400, "vs_rllib_dqn": 32_000 / 640}
    assert result.samples["ppo"] == {"motet": [32_000.0] * 3, "RLlib": [6400.0] * 3}
    assert result.samples["dqn_updates"] == {"motet": [250.0] * 3, "RLlib": [500.0] * 3}
    facts = result.facts["dqn_RLlib"]
    assert facts["chosen"] == "processes with worlds: 1, worlds in each: 32"
    assert [found["steps_per_s"] for found in facts["tried"].values()] == [10.0, 80.0, 320.0, 640.0, 160.0]
    assert result.facts["rllib_versions"] == {"ray": "9.9"}
    assert result.notes[0] == "RLlib of ray 9.9" and len(result.notes) == 5
    assert result.notes[2] == "PPO, RLlib, the fastest of 5: processes with worlds: 1, worlds in each: 32"
    jobs = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(one["runners"], one["envs"], one["seconds"]) for one in jobs if one["kind"] == "ppo"] == [
        (0, 1, 1.0), (0, 8, 1.0), (0, 32, 1.0), (1, 32, 1.0), (2, 16, 1.0), *[(1, 32, 2.0)] * 3
    ]  # fmt: skip
    json.loads(result.as_json())


def test_without_rllib_a_message_says_what_to_do(tmp_path: Path) -> None:
    peer, log = stand_in(tmp_path, {"ray": "9.9", "dm-tree": None})
    result = compared(peer)
    assert "dm-tree" in result.skipped["RLlib"] and "--rllib-python" in result.skipped["RLlib"]
    assert result.values == {} and result.median("ppo", "motet") == 32_000  # motet's side is there all the same
    assert not log.exists()


def test_both_sides_have_the_same_job() -> None:
    given = job("ppo")
    for worlds in {setup.processes * setup.worlds for setup in bench.SETUPS["motet"]}:
        config = ppo(worlds)
        assert given["rollout"] == config.batch_size * config.length
        assert given["minibatch"] * config.minibatches == given["rollout"] and given["epochs"] == config.epochs
        assert config.epochs * config.minibatches == OPTIMISER_STEPS
        assert given["activation"] == config.activation and tuple(given["hidden"]) == config.hidden == DQN.hidden
    given = job("dqn")
    assert (given["batch"], given["warm_up"], given["capacity"]) == (DQN.batch_size, DQN.min_rows, DQN.capacity)
    assert given["activation"] == "relu" and DQN.double and not DQN.dueling
    pytest.importorskip("mpe2")
    world = spread()
    assert len(world.possible_agents) == 3 and world.observation_space("agent_0").shape == (18,)


def test_the_program_for_rllib_needs_nothing_of_motet() -> None:
    # -S: no installed package at all.
    done = subprocess.run([sys.executable, "-S", "-P", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    versions = json.loads(done.stdout)
    assert versions.pop("python") == sys.version.split()[0]
    assert "ray" in versions and set(versions.values()) == {None}


def test_paths_that_are_not_a_python_interpreter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"rllib_python must be a Python interpreter, got .*nowhere"):
        bench._Peer(tmp_path / "nowhere")


def test_a_failure_of_rllib_is_shown(tmp_path: Path) -> None:
    peer, _ = stand_in(tmp_path)
    (tmp_path / "python").write_text(f"#!{sys.executable}\nraise SystemExit('no env runner left')\n")
    with pytest.raises(MotetError, match="exit code 1:\nno env runner left"):
        peer.train("ppo", bench.Setup(0, 1), 1.0)


def test_other_benches_take_no_python_for_rllib() -> None:
    command = [sys.executable, "-m", "motet.cli", "bench", "replay", "--rllib-python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.startswith(
        "error: rllib_python is only valid with 'ray', which compares with RLlib (got 'replay')"
    )


@pytest.mark.slow
def test_json_has_the_promised_names() -> None:
    command = [sys.executable, "-m", "motet.cli", "bench", "ray", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    rllib = set() if "RLlib" in report["raw"]["skipped"] else {"vs_rllib_ppo", "vs_rllib_dqn"}
    assert set(report["values"]) == {"rows_per_s", "ray_vs_processes"} | rllib
    assert all(value > 0 for value in report["values"].values())
    (updates,) = report["raw"]["samples"]["dqn_updates"]["motet"]
    assert 500 < updates < 2000  # one for each step, as the pace says
