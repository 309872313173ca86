"""``motet bench cartpole`` runs, with tiny sizes: what it prints. Never how well anything learns."""

import json
import subprocess
import sys
from typing import Any

VALUES = {"bursts", "bursts_ahead", "interleaved", "sb3_bursts", "sb3_interleaved"}
COMMAND = [sys.executable, "-m", "motet.cli", "bench", "cartpole", "--quick", "--repeats", "1", "--json"]


def test_json_has_the_promised_names() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["bench"] == "cartpole"
    missing = {"sb3_bursts", "sb3_interleaved"} if report["raw"]["skipped"] else set()
    assert set(report["values"]) == VALUES - missing
    assert len(report["raw"]["skipped"]) == len(missing)
    for contestant, values in report["raw"]["samples"]["return"].items():
        assert len(values) == 1 and 1 <= values[0] <= 500
        assert len(report["raw"]["facts"][contestant]["seed 0"]) == 2
