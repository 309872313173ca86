"""``motet bench collect`` runs, with tiny sizes: what it prints. Never how fast anything is."""

import json
import subprocess
import sys
from typing import Any

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
