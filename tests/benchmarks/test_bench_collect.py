"""``motet bench collect`` runs, with tiny sizes: what it prints. Never how fast anything is."""

import json
import subprocess
import sys
from typing import Any

from benchmarks import global_streams
from motet.world.batch import make_world_batch

VALUES = {"overlap_vs_blocking", "learner_busy", "hockey_steps_per_s_vs_loop", "td3_vs_sb3", "per_cost"}
VALUES |= {"own_rules_vs_own_loop", "objects_vs_own_loop"}
VALUES |= {"own_streams_vs_shared", "drawn_streams_vs_shared"}
COMMAND = [sys.executable, "-m", "motet.cli", "bench", "collect", "--quick", "--repeats", "1", "--seconds", "0.02"]


def test_json_has_the_promised_names() -> None:
    done = subprocess.run([*COMMAND, "--json"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["bench"] == "collect"
    missing = {"td3_vs_sb3"} if any("stable" in name for name in report["raw"]["skipped"]) else set()
    assert set(report["values"]) == VALUES - missing
    assert all(isinstance(value, float) and value > 0 for value in report["values"].values())
    assert 0 < report["values"]["learner_busy"] <= 1.01
    assert 0 < report["values"]["per_cost"] < 1
    for measure, contestants in report["raw"]["samples"].items():
        assert measure in report["raw"]["units"]
        assert all(len(repeats) == 1 and repeats[0] > 0 for repeats in contestants.values())
    (ratio,) = report["raw"]["facts"]["motet_updates_per_step"]
    assert 0.5 < ratio < 2  # one update per step, as the pace says


def test_draws_of_one_contestant_do_not_count_for_another(monkeypatch):
    """The worlds that do not draw have given up their streams when they are measured, beside others that draw."""
    made = []

    def make(*args, **more):
        made.append(make_world_batch(*args, **more))
        return made[-1]

    monkeypatch.setattr(global_streams, "make_world_batch", make)
    monkeypatch.setattr(global_streams, "_STEP_S", 0.0)
    plays = [global_streams.steps_per_s(name, 0.01) for name in global_streams.CONTESTANTS]
    for _ in range(2):
        assert all(play() > 0 for play in plays)
    quiet = made[list(global_streams.CONTESTANTS).index("no draws, own streams")]
    assert quiet.user.gives_up_all and not quiet.user.late
