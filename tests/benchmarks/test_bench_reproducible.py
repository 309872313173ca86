"""``motet bench reproducible`` runs, with tiny sizes: what it prints. Never how fast anything is."""

import json
import subprocess
import sys
from typing import Any

VALUES = {"overlap", "vs_bounded", "vs_bounded_unequal", "vs_lockstep", "cost_of_a_period", "vault_us", "loading_us"}
COMMAND = [sys.executable, "-m", "motet.cli", "bench", "reproducible", "--quick", "--repeats", "1", "--seconds", "0.02"]


def test_json_has_the_promised_names() -> None:
    done = subprocess.run([*COMMAND, "--json"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["bench"] == "reproducible"
    assert set(report["values"]) == VALUES
    assert all(value > 0 for value in report["values"].values())
    for measure, contestants in report["raw"]["samples"].items():
        assert measure in report["raw"]["units"]
        assert all(len(repeats) == 1 and repeats[0] > 0 for repeats in contestants.values())
