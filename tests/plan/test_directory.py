"""Plans whose arrays are kept in files: the same bits as in memory, nothing left behind, and less private memory."""

import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from support.small_models import Layered, Wide

from motet.errors import MemoryShortError, SettingError
from motet.plan import Humans, enumerate_states, evaluate_robot, solve, solve_robot
from motet.system.memory import MappedFile
from motet.worlds import Rooms


class Shortcut:
    """A state that is found first is not in the first level: the long way to it has more steps."""

    agents = ("human_0", "robot_0")
    human_agent_indices, robot_agent_indices = (0,), (1,)
    action_space = None
    n_actions_per_agent = (2, 1)

    def reset(self):
        self.state = ("start", 0)

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state

    def transition_probabilities(self, state, actions):
        kind, at = state
        if kind == "end":
            return None
        if kind == "start":
            return [(1.0, ("end", 0))] if actions[0] else [(0.5, ("way", 0)), (0.5, ("way", 1))]
        return [(1.0, ("way", at + 2))] if at < 6 else [(0.25, ("end", 0)), (0.75, ("end", 1))]


def same(one, other):
    assert list(one.states) == list(other.states)
    assert one.arrays().keys() == other.arrays().keys()
    for name, array in one.arrays().items():
        assert array.dtype == other.arrays()[name].dtype
        assert array.tobytes() == other.arrays()[name].tobytes(), name


MODELS = {
    "layered": partial(Layered, 3, (2, 3), (2,), durations=True),
    "wide": Wide,
    "shortcut": Shortcut,
    "rooms": partial(Rooms, "closet", horizon=5),
}


@pytest.mark.parametrize("name", MODELS)
def test_graph_in_files_has_the_bits_of_a_graph_in_memory(name, tmp_path, monkeypatch):
    model = MODELS[name]()
    monkeypatch.setattr("motet.plan.enumeration._BLOCK", 3)
    rewards = hasattr(model, "transition_rewards")
    expected = enumerate_states(model, rewards=rewards, workers=1)
    found = enumerate_states(model, rewards=rewards, workers=1, directory=tmp_path)
    same(expected, found)
    assert not os.listdir(tmp_path)  # files have no name


def test_joint_numbers_grow_wider_in_files(tmp_path):
    """More than 256 distributions of a state: the array is written again with larger integers."""

    class Many(Shortcut):
        n_actions_per_agent = (300, 1)

        def transition_probabilities(self, state, actions):
            kind, _ = state
            if kind == "end":
                return None
            if kind == "start":
                return [(1.0, ("way", 0))]
            return [(1.0, ("end", actions[0]))]

    expected, found = enumerate_states(Many()), enumerate_states(Many(), directory=tmp_path)
    assert expected.joint.dtype == np.uint16
    same(expected, found)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_solutions_in_files_have_the_bits_of_solutions_in_memory(dtype, tmp_path):
    rooms = Rooms("freeing", horizon=5)
    graph, mapped = enumerate_states(rooms), enumerate_states(rooms, directory=tmp_path)
    goals = {0: rooms.goals(0)}
    settings = {"dtype": dtype}
    human = Humans(beta=5.0, gamma=0.9)
    for expected, found in (
        (solve(graph, goals, human, **settings), solve(mapped, goals, human, directory=tmp_path, **settings)),
        (
            solve(graph, goals, human, robot=None, **settings),
            solve(mapped, goals, human, robot=None, directory=tmp_path, **settings),
        ),
        (
            solve_robot(graph, goals, lambda s, h, g: [0.25] * 4, **settings),
            solve_robot(mapped, goals, lambda s, h, g: [0.25] * 4, directory=tmp_path, **settings),
        ),
        (
            evaluate_robot(graph, lambda s: [0.25] * 4, goals, lambda s, h, g: [0.25] * 4, **settings),
            evaluate_robot(
                mapped, lambda s: [0.25] * 4, goals, lambda s, h, g: [0.25] * 4, directory=tmp_path, **settings
            ),
        ),
    ):
        assert expected.arrays.keys() == found.arrays.keys()
        for name in expected.arrays:
            assert expected.arrays[name].tobytes() == found.arrays[name].tobytes(), name
    assert not os.listdir(tmp_path)


LIMITED = """
import resource, sys
from motet.errors import MemoryShortError
from motet.plan import Humans, enumerate_states, solve
from motet.worlds import Rooms

class Goal:
    def __init__(self, number):
        self.number = number
    def is_achieved(self, state):
        return True

rooms = Rooms("freeing", horizon=6)
graph = enumerate_states(rooms)
goals = [Goal(number) for number in range(int(sys.argv[1]))]
with open("/proc/self/status") as status:
    used = next(int(line.split()[1]) for line in status if line.startswith("VmData")) * 1024
limit = used + len(graph) * len(goals) * 12  # V_h and V_he take 16 bytes for each state and goal
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    directory = None if sys.argv[2] == "memory" else sys.argv[2]
    solve(graph, goals, Humans(achieved="one"), directory=directory, workers=1)
except MemoryShortError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA of other systems includes mapped files, or nothing")
def test_plan_that_exceeds_the_memory_is_solved_in_files(tmp_path):
    def run(where):
        return subprocess.run([sys.executable, "-c", LIMITED, "3000", str(where)], capture_output=True, text=True)

    refused = run("memory")
    assert refused.returncode == 1 and "directory=…" in refused.stderr, refused.stderr
    solved = run(tmp_path)
    assert solved.returncode == 0, solved.stderr


def test_directory_must_exist(tmp_path):
    with pytest.raises(SettingError, match="directory must be an existing folder"):
        enumerate_states(Rooms("closet", horizon=3), directory=tmp_path / "missing")


def test_full_disk_is_an_error_and_not_a_killed_process(tmp_path, monkeypatch):
    monkeypatch.setattr("motet.system.memory.available_bytes", lambda directory=None: 100)
    with pytest.raises(MemoryShortError, match="on the file system of"):
        enumerate_states(Rooms("closet", horizon=3), directory=tmp_path)


def test_earlier_arrays_of_a_file_remain_valid_when_it_grows(tmp_path):
    file = MappedFile(tmp_path)
    early = file.array((4,), "int32")
    early[:] = [1, 2, 3, 4]
    late = file.array((100_000,), "int32")
    late[1] = 7
    assert early.tolist() == [1, 7, 3, 4] and late[:4].tolist() == [1, 7, 3, 4]
    assert not late[4:].any()
    del file
    assert late[0] == 1
