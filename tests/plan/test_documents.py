"""The example and the documentation run as they are written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from motet.plan import PlannedPolicy, Solution, enumerate_states, solve
from motet.policy import Policy, PolicySpec
from motet.worlds import Rooms
from motet.worlds.rooms import MAPS


def test_the_example_runs():
    path = ROOT / "examples" / "plan_rooms.py"
    assert len(path.read_text().splitlines()) <= 60
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "the robot first goes down" in done.stdout
    arrived, planned = re.search(r"in (\d+) of 100 episodes; the plan says (\d+)%", done.stdout).groups()
    assert abs(int(arrived) - int(planned)) < 15  # three deviations of a hundred coins


def test_the_blocks_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "plan.md").read_text(), re.S):
        exec(compile(block, "docs/plan.md", "exec"), {})
    assert Solution.load("plans/freeing").goals
    assert Path("regret.png").stat().st_size > 1000


@pytest.mark.parametrize("name", sorted(set(MAPS) - {"courtyard"}))
def test_the_table_of_maps_is_true(name):
    row = re.search(rf"\| `{name}` \| .* \| (\d+) \| ([\d,]+) \|", (ROOT / "docs" / "plan.md").read_text())
    assert int(row.group(1)) == MAPS[name][1]
    assert int(row.group(2).replace(",", "")) == len(enumerate_states(Rooms(name)))


def test_a_planned_policy_is_a_policy_that_another_process_can_make(tmp_path):
    rooms = Rooms("closet", horizon=3)
    solution = solve(enumerate_states(rooms), {0: rooms.goals(0)})
    solution.save(tmp_path / "plan")
    arguments = {"path": tmp_path / "plan", "agent": "human_0", "goal": "1,2"}
    made = PolicySpec(PlannedPolicy.load, {**arguments, "world": rooms}).make()
    assert isinstance(made, Policy)
    observations, _ = rooms.reset(seed=0)
    made.reset(1)
    direct = solution.acting("human_0", "1,2", lambda seen: rooms.state_of(seen, "human_0"))
    direct.reset(1)
    assert [made.act(observations["human_0"]) for _ in range(20)] == [
        direct.act(observations["human_0"]) for _ in range(20)
    ]
    only_up = [True, False, False, False]
    assert made.act(observations["human_0"], only_up) == 0
