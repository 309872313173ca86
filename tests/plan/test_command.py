"""motet plan, as a user calls it."""

import json
import re

import numpy as np
import pytest

from motet.cli import main
from motet.plan import Graph, Solution, best_response


def test_rooms_are_planned_saved_and_drawn(tmp_path, capsys):
    out = tmp_path / "plans" / "x"
    assert main(["plan", "rooms", "--map", "freeing", "--horizon", "4", "--workers", "2", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "states" in shown.out
    assert re.search(r"levels +5\n", shown.out)
    assert "power of human_0 at the start" in shown.out
    assert "enumerate" in shown.err or "humans:" in shown.err
    assert (out / "plan.png").stat().st_size > 1000
    loaded = Solution.load(out)
    assert loaded.policy(loaded.graph.states[0], "robot_0").sum() == pytest.approx(1)
    assert json.loads((out / "header.json").read_text())["kind"] == "solution"


def test_settings_are_those_of_the_api(tmp_path):
    for beta in ("0", "inf"):
        out = tmp_path / beta
        flags = ["--humans.beta", beta, "--humans.robot", "best", "--robot.zeta", "2", "--dtype", "float32"]
        assert main(["plan", "rooms", "--map", "closet", "--horizon", "3", *flags, "--out", str(out)]) == 0
    flat = Solution.load(tmp_path / "0")
    assert flat.arrays["human_policy"].dtype == np.float32
    np.testing.assert_allclose(flat.policy(flat.graph.states[0], 0), 0.25)


def test_a_map_may_be_a_file(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("#####\n#H.R#\n#..##\n#####\n")
    assert main(["plan", "rooms", "--map", str(tmp_path / "mine.txt"), "--horizon", "3"]) == 0
    assert re.search(
        r"robot_0 at the start: up \d+\.\d%, down \d+\.\d%, left \d+\.\d%, right \d+\.\d%\n",
        capsys.readouterr().out,
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"world = 'rooms'\n" * 50, "map must have the signs"),
        (b"x" * 5000, "or text of several lines, got 'xxx"),
        (b"\xff\n" * 5, "map must be a name or a readable file"),
    ],
)
def test_a_file_that_is_no_map_is_not_printed(content, says, tmp_path, capsys):
    (tmp_path / "mixed.toml").write_bytes(content)
    assert main(["plan", "rooms", "--map", str(tmp_path / "mixed.toml")]) == 2
    err = capsys.readouterr().err
    assert says in err and "mixed.toml" in err and len(err) < 500


def test_actions_without_names_have_numbers(monkeypatch, capsys):
    monkeypatch.delattr("motet.worlds.rooms.Rooms.action_names")
    assert main(["plan", "rooms", "--map", "closet", "--horizon", "3"]) == 0
    assert re.search(r"robot_0 at the start: action 0 \d+\.\d%, action 1 ", capsys.readouterr().out)


def test_for_rewards_alone_the_graph_is_saved_and_the_message_says_it_is_not_a_policy(tmp_path, capsys):
    out = tmp_path / "hunt"
    assert main(["plan", "small_hunt", "--horizon", "2", "--out", str(out)]) == 0
    assert f"graph saved in {out}: " in capsys.readouterr().out
    graph = Graph.load(out)
    assert best_response(graph, "agent_0").value[0] == 10.0
    for given in (str(out), f"plan={out}"):
        assert main(["eval", "small_hunt", "-p", given]) == 2
        assert "holds only the graph of a world with rewards" in capsys.readouterr().err


def test_a_model_of_the_user_s_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "corridor.py").write_text(
        "from types import SimpleNamespace\n"
        "class Corridor:\n"
        "    agents = ['walker']\n"
        "    action_space = SimpleNamespace(n=2)\n"
        "    def reset(self): self.at = 0\n"
        "    def get_state(self): return self.at\n"
        "    def set_state(self, state): self.at = state\n"
        "    def transition_probabilities(self, state, actions):\n"
        "        return None if state == 3 else [(1.0, state + 1)]\n"
        "    def transition_rewards(self, state, actions, transitions):\n"
        "        return [[float(actions[0])] for _ in transitions]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "corridor:Corridor", "--out", "graph"]) == 0
    assert "best response of walker to uniformly random others, at the start: 3\n" in capsys.readouterr().out
    assert main(["plan", "corridor:Corridor", "--horizon", "3"]) == 2
    assert "does not take horizon" in capsys.readouterr().err


def test_roles_and_goals_of_a_model_that_leaves_its_roles_open(tmp_path, capsys):
    bushes = "support.bush_corridor:GeneratedBushes"
    out = tmp_path / "plan"
    flags = ["--horizon", "2", "--out", str(out)]
    assert main(["plan", bushes, "--human-agents", "1", "agent_2", "--robot-agents", "0", *flags]) == 0
    shown = capsys.readouterr().out
    assert "power of agent_1 at the start" in shown and "agent_0 at the start: action 0 " in shown
    assert Solution.load(out).graph.humans == (1, 2)
    assert main(["plan", bushes, "--horizon", "2"]) == 2
    assert "give --human-agents and --robot-agents" in capsys.readouterr().err
    assert main(["plan", "support.bush_corridor:BushCorridor", "--horizon", "2"]) == 2
    says = "model must have goals(human) or possible_goal_generator, to be solved for humans and a robot, or "
    assert says + "transition_rewards, for best responses" in capsys.readouterr().err
    assert main(["plan", "small_hunt", "--horizon", "2", "--human-agents", "0"]) == 2
    assert "only valid for a model with goals(human) or possible_goal_generator" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "model must be one of rooms, small_hunt, bushes, or 'module:factory', got 'nowhere'"),
        (["no_such_module:Model"], "model must be something that can be imported, got 'no_such_module:Model'"),
        (["rooms", "--map", "nowhere"], "or text of several lines, got 'nowhere'"),
        (["rooms", "--map", "blocked", "--max-states", "100"], "more than 100 states (max_states)"),
        (["rooms", "--map", "closet", "--horizon", "0"], "the model has a cycle"),
        (["rooms", "--map", "closet", "--humans.beta", "-1"], "humans.beta must be a number >= 0, got -1"),
    ],
)
def test_errors_are_one_line_with_what_to_do(arguments, says, capsys):
    try:
        code = main(["plan", *arguments])
    except SystemExit as ended:  # tyro's own
        code = ended.code
    assert code == 2
    shown = capsys.readouterr()
    assert says in shown.err + shown.out
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("place", ["file/x", "/proc/xx"])
def test_unwritable_output_is_reported_before_planning(place, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr("motet.cli.plan.enumerate_states", None)  # would be called
    assert main(["plan", "rooms", "--horizon", "4", "--out", str(tmp_path / place)]) == 2
    err = capsys.readouterr().err
    assert "cannot be written" in err and "Traceback" not in err
