"""One seed gives one result, for all kinds and numbers of policies, in any processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from support import TESTS, without_torch
from support import playing_policies as playing

import motet
from motet.errors import MotetError, SettingError, StartError
from motet.evaluation.episode import Arena, EpisodePlan, Task
from motet.evaluation.evaluate import EvaluationSettings
from motet.evaluation.game import shared_out
from motet.evaluation.jobs import JobPool
from motet.evaluation.latency import LatencyHistogram
from motet.intervals import score, student
from motet.isolation.policy import PolicyLimits, sandbox_gaps
from motet.policies.entries import as_given, entries
from motet.policies.joint import TeamPolicy, filler, joint_spaces
from motet.policy import PolicySpec, RandomPolicy
from motet.text import short
from motet.worlds import Cleanup, MatrixGame, TreasureHunt


@pytest.fixture(scope="module")
def workers():
    with JobPool(4) as made:
        yield made


def spread():
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=3, max_cycles=5)


def four_in_a_row():
    from pettingzoo.classic import connect_four_v3

    return connect_four_v3.env()


WORLDS = {
    "treasure_hunt": partial(TreasureHunt, agents=3, size=9, turns=10),
    "cleanup": partial(Cleanup, agents=3, turns=8),
    "mpe": spread,
    "classic": four_in_a_row,
}
HOW = [(jobs, isolate, pooled) for isolate in (False, True) for jobs in (1, 2, 4) for pooled in (True, False)]


@pytest.mark.parametrize("world", WORLDS)
def test_one_seed_gives_one_result(workers, world):
    """Stateful, recurrent and stochastic policies; any jobs, isolated or not, kept between episodes or not."""
    policies = [playing.Counting, playing.Recurrent, "random,proportion=0.5"]
    results = {
        how: motet.evaluate(
            WORLDS[world], policies, episodes=4, seed=5, jobs=how[0], isolate=how[1], pooled=how[2], workers=workers
        )
        for how in HOW
    }
    first = results[HOW[0]]
    assert not first.failures()
    assert len({episode.returns for episode in first.episodes}) > 1 or world == "classic"
    assert len({episode.policies for episode in first.episodes}) > 1
    for how, result in results.items():
        assert result.deterministic() == first.deterministic(), how
        assert result.measured.jobs == how[0]
        assert set(result.measured.isolated.values()) == {how[1]}


def test_another_seed_gives_another_result(workers):
    first, second = (
        motet.evaluate(WORLDS["treasure_hunt"], ["random", playing.Recurrent], episodes=4, seed=seed, workers=workers)
        for seed in (1, 2)
    )
    assert [one.returns for one in first.episodes] != [one.returns for one in second.episodes]
    longer = motet.evaluate(
        WORLDS["treasure_hunt"], ["random", playing.Recurrent], episodes=6, seed=1, jobs=2, workers=workers
    )
    assert longer.episodes[:4] == first.episodes, "an episode depends on the seed and its number alone"


@pytest.mark.parametrize("world", ["treasure_hunt", "mpe", "classic"])
def test_joint_policies_and_teams_play_the_same_isolated_or_not(workers, world):
    """Isolated or not; a team that draws from the process's own random stream disturbs nobody's."""
    policies = [playing.Joint, playing.Team] if world != "classic" else [playing.Joint, "random"]
    results = [
        motet.evaluate(WORLDS[world], policies, episodes=4, jobs=jobs, isolate=isolate, workers=workers)
        for jobs, isolate in ((1, False), (2, False), (1, True), (2, True))
    ]
    assert not results[0].failures()
    for result in results[1:]:
        assert result.deterministic() == results[0].deterministic()


def test_a_joint_policy_on_seats_of_its_own_is_one_policy(workers):
    """As it is where it shares all seats with nobody."""
    agents = ["agent_0", "agent_1", "agent_2"]
    alone = motet.evaluate(WORLDS["treasure_hunt"], playing.Joint, episodes=2, workers=workers)
    for isolate in (False, True):
        seated = motet.evaluate(
            WORLDS["treasure_hunt"], dict.fromkeys(agents, playing.Joint), episodes=2, isolate=isolate, workers=workers
        )
        assert [one.returns for one in seated.episodes] == [one.returns for one in alone.episodes]
        assert seated.names == ("Joint",)


def test_a_seat_and_the_proportions(workers):
    mixed = ["random,seat=agent_1", playing.Counting, "noop"]
    result = motet.evaluate(WORLDS["treasure_hunt"], mixed, episodes=20, workers=workers)
    assert all(episode.policies[1] == "random" for episode in result.episodes)
    assert {episode.policies[0] for episode in result.episodes} == {"Counting", "noop"}
    rng = np.random.default_rng(0)
    counts = np.zeros(3)
    for _ in range(3000):
        chosen = shared_out(4, [0, 1, 2], [2.0, 1.0, 0.5], rng)
        counts += np.bincount(chosen, minlength=3)
        assert len(chosen) == 4
    assert np.allclose(counts / counts.sum(), np.array([2, 1, 0.5]) / 3.5, atol=0.01)
    pairs = {tuple(sorted(shared_out(2, [0, 1, 2], [1.0, 1.0, 1.0], rng))) for _ in range(200)}
    assert pairs == {(0, 1), (0, 2), (1, 2)}


def test_fewer_processes_mean_fewer_jobs_then_shared_ones_then_an_error(workers):
    world, policies = WORLDS["treasure_hunt"], [playing.Counting, playing.Recurrent]
    said: list[str] = []
    plain = motet.evaluate(world, policies, episodes=4, workers=workers)
    few = motet.evaluate(
        world, policies, episodes=4, jobs=2, isolate=True, max_processes=5, workers=workers, on_message=said.append
    )
    assert (few.measured.jobs, "1 of 2 jobs" in said[0]) == (1, True)
    shared = motet.evaluate(
        world, policies, episodes=4, jobs=2, isolate=True, max_processes=2, workers=workers, on_message=said.append
    )
    assert "share a process" in said[1]
    assert plain.deterministic() == few.deterministic() == shared.deterministic()
    with pytest.raises(
        SettingError, match=r"max_processes must be at least 2, the number of isolated policies in one episode, got 1"
    ):
        motet.evaluate(world, policies, episodes=4, isolate=True, max_processes=1, workers=workers)


# ---- failures


@pytest.mark.parametrize(("how", "cause"), [("raise", "exception"), ("reset", "reset"), ("answer", "answer")])
def test_the_stand_in_acts_after_a_failure(workers, how, cause):
    """And nothing else changes: the others' results are those against a policy that plays as the stand-in does."""
    spec = PolicySpec(playing.FailsAt, {"how": how, "turn": 5}, "hostile")
    turn = 0 if how == "reset" else 5
    fair = PolicySpec(playing.ThenNothing, {"turn": turn}, "hostile")
    for isolate in (False, True):
        failing, honest = (
            motet.evaluate(
                playing.Duet, {"left": one, "right": playing.Recurrent}, episodes=4, isolate=isolate, workers=workers
            )
            for one in (spec, fair)
        )
        assert failing.failures() == {"hostile": {cause: 4}}
        assert not honest.failures()
        assert [one.returns for one in failing.episodes] == [one.returns for one in honest.episodes]
        assert [one.failures[0].turn for one in failing.episodes] == [max(0, turn - 1)] * 4


ZOO = {
    # name: (cause, limits, sandbox, actions are a box)
    "Sleeps": ("timeout", {"decision_s": 0.2}, "no", False),
    "IgnoresSigterm": ("timeout", {"decision_s": 0.2}, "no", False),
    "Busy": ("timeout", {"decision_s": 0.2}, "no", False),
    "RaisesAtStart": ("start", {}, "no", False),
    "RaisesAtReset": ("reset", {}, "no", False),
    "Raises": ("exception", {}, "no", False),
    "LeavesQuietly": ("died", {}, "no", False),
    "KillsItself": ("died", {}, "no", False),
    "EatsMemory": ("memory", {"memory_bytes": 300 << 20, "decision_s": 60.0}, "no", False),
    "Prints": (None, {"output_bytes": 2000}, "no", False),
    "AnswersNan": ("answer", {}, "no", True),
    "AnswersTheWrongShape": ("answer", {}, "no", True),
    "AnswersText": ("answer", {}, "no", False),
    "AnswersABomb": ("answer", {}, "no", False),
    "Forks": ("timeout", {"decision_s": 0.2}, "no", False),
    "KillsItsParent": ("died", {}, "no", False),
    "OpensASocket": ("refused", {}, "strict", False),
    "WritesHome": ("refused", {}, "strict", False),
}


@pytest.mark.parametrize("name", ZOO)
def test_hostile_policies_affect_only_themselves(workers, name):
    """The failure is named; the honest one earns what it earns against the same moves, and then the stand-in's."""
    cause, limits, sandbox, box = ZOO[name]
    if sandbox != "no" and sandbox_gaps():
        pytest.skip("; ".join(sandbox_gaps()))
    at = 0 if name in ("RaisesAtStart", "RaisesAtReset") else 3
    arguments = {} if name == "RaisesAtStart" else {"at": 0 if box else at}
    hostile = PolicySpec(f"support.hostile_zoo:{name}", arguments, "hostile")
    honest = PolicySpec(playing.UpTo, {"at": 10**9 if cause is None else 0 if box else at}, "hostile")
    world = partial(playing.Duet, turns=6, box=box)
    met, fair = (
        motet.evaluate(
            world,
            {"left": one, "right": playing.Recurrent},
            episodes=2,
            isolate=True,
            sandbox=sandbox if one is hostile else "no",
            limits=PolicyLimits(**limits) if one is hostile else None,
            workers=workers,
        )
        for one in (hostile, honest)
    )
    assert met.failures() == ({} if cause is None else {"hostile": {cause: 2}}), [e.failures for e in met.episodes]
    assert [one.returns for one in met.episodes] == [one.returns for one in fair.episodes]
    if name == "Prints":
        assert "all work and no play" in met.measured.output["hostile"]
        assert "\x1b" not in met.html()


@pytest.mark.usefixtures("no_leaks")
def test_nothing_is_left_of_hostile_policies():
    policies = [
        "support.hostile_zoo:Forks,kw.at=2",
        "support.hostile_zoo:Sleeps,kw.at=1",
        "support.hostile_zoo:LeavesQuietly",
    ]
    result = motet.evaluate(
        playing.Duet, policies, episodes=6, jobs=2, isolate=True, limits=PolicyLimits(decision_s=0.2), max_failures=2
    )
    assert {cause for causes in result.failures().values() for cause in causes} <= {"timeout", "died"}
    assert len(result.out) >= 2


def test_a_policy_that_fails_too_often_is_disqualified_for_any_number_of_jobs(workers):
    """Decided in the order of episodes: what others have played ahead with it is discarded."""
    spec = PolicySpec(playing.FailsAt, {"turn": 2, "every": 2}, "hostile")
    for stand_in in ("noop", "random", "forfeit"):
        results = [
            motet.evaluate(
                playing.Duet,
                [spec, playing.Recurrent],
                episodes=20,
                jobs=jobs,
                isolate=isolate,
                max_failures=3,
                stand_in=stand_in,
                workers=workers,
            )
            for jobs, isolate in ((1, False), (2, False), (4, False), (4, True))
        ]
        first = results[0]
        last = first.out["hostile"]
        assert first.failures() == {"hostile": {"exception": 3}}
        assert all(("hostile" in episode.out) == (episode.number > last) for episode in first.episodes)
        for result in results[1:]:
            assert result.deterministic() == first.deterministic()
        forfeited = [episode for episode in first.episodes if episode.forfeited]
        assert len(forfeited) == (0 if stand_in != "forfeit" else 3 + (20 - last - 1))
        if stand_in == "forfeit":
            assert first.scores()["Recurrent"].count == 20 - len(forfeited)


def test_a_mask_that_is_broken_is_a_failure(workers):
    bad = PolicySpec("motet.policies.scripted:Noop", {}, "stubborn")

    class Stubborn:
        def reset(self, seed):
            pass

        def act(self, observation, mask=None):
            return 0

    result = motet.evaluate(four_in_a_row, [Stubborn, bad], episodes=1, workers=workers)
    assert all(causes == {"answer": 1} for causes in result.failures().values())
    assert "Stubborn" in str(result.failures())


def test_a_world_that_raises_is_named(workers):
    class Broken(playing.Duet):
        def step(self, actions):
            raise ZeroDivisionError("in the world")

    result = motet.evaluate(Broken, "random", episodes=3, workers=workers)
    assert [one.failed for one in result.episodes] == ["world"] * 3
    assert all("ZeroDivisionError: in the world" in one.detail for one in result.episodes)
    assert motet.evaluate(playing.Duet, "random", episodes=3, workers=workers).episodes


def test_a_policy_that_ends_its_job_is_recognised():
    result = motet.evaluate(playing.Duet, PolicySpec(playing.FailsAt, {"how": "exit"}), episodes=2)
    assert [one.failed for one in result.episodes] == ["job"] * 2
    assert re.search(r"exit code 3 while it played episode 0.*isolate", result.episodes[0].detail)


@pytest.mark.parametrize("isolate", [False, True])
def test_a_killed_job_is_restarted(workers, isolate):
    policies = [playing.Counting, playing.Recurrent]
    whole = motet.evaluate(playing.Duet, policies, episodes=30, workers=workers)
    killed, said = [], []

    def kill(done, total):
        if done in (3, 17):
            killed.append(workers._workers[done % 2].child.pid)
            os.kill(killed[-1], signal.SIGKILL)

    result = motet.evaluate(
        playing.Duet,
        policies,
        episodes=30,
        jobs=2,
        isolate=isolate,
        workers=workers,
        on_progress=kill,
        on_message=said.append,
    )
    assert result.deterministic() == whole.deterministic()
    assert len(killed) == 2
    assert all("was killed by SIGKILL" in line for line in said)


def test_an_episode_that_kills_every_job_has_failed():
    spec = PolicySpec("support.hostile_zoo:KillsItself")
    said: list[str] = []
    result = motet.evaluate(playing.Duet, spec, episodes=2, on_message=said.append)
    assert [one.failed for one in result.episodes] == ["job"] * 2
    assert re.search(r"killed by SIGKILL while it played episode 0.*isolate", result.episodes[0].detail)
    assert sum("; restarting" in line for line in said) == 4, "two more attempts for each"


def test_a_hung_job_is_named():
    spec = PolicySpec(playing.FailsAt, {"how": "sleep", "turn": 3})
    result = motet.evaluate(playing.Duet, spec, episodes=2, hang_s=0.5)
    assert [one.failed for one in result.episodes] == ["job"] * 2
    assert re.search(r"player-0 sent no heartbeat for .* episode 0 .*isolate", result.episodes[0].detail)


# ---- interruption

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import motet
from support import playing_policies
if __name__ == "__main__":
    print("ready", flush=True)
    result = motet.evaluate(playing_policies.Duet, [playing_policies.Slow], episodes=100_000, jobs=2,
                            on_progress=lambda done, total: done == 20 and print("twenty", flush=True))
    result.save({out!r})
    print(result.partial, len(result.episodes), flush=True)
"""


@pytest.mark.usefixtures("no_leaks")
def test_ctrl_c_gives_what_was_played_marked_as_partial(tmp_path, workers):
    script, out = tmp_path / "script.py", tmp_path / "result.json"
    script.write_text(SCRIPT.format(here=str(TESTS), out=str(out)))
    child = subprocess.Popen([sys.executable, str(script)], env=without_torch(), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    while "twenty" not in child.stdout.readline():
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    text, _ = child.communicate(timeout=60)
    assert text.startswith("True")
    result = json.loads(out.read_text())["result"]
    count = len(result["episodes"])
    assert result["partial"]
    assert 20 <= count < 100_000
    whole = motet.evaluate(playing.Duet, [playing.Counting], episodes=count, workers=workers)
    assert [one["returns"] for one in result["episodes"]] == [list(one.returns) for one in whole.episodes]


# ---- what users give


def test_the_result_does_not_depend_on_the_calling_process(workers):
    result = motet.evaluate(lambda: playing.Duet(), lambda action_space: RandomPolicy(action_space), workers=workers)
    assert b"0x" not in result.deterministic()


def test_a_given_object_is_used_unchanged(workers):
    policy = playing.Counting(Discrete(3), "left", {})
    policy.count = 100
    results = [
        motet.evaluate(playing.Duet, {"left": policy, "right": "random"}, episodes=2, isolate=isolate, workers=workers)
        for isolate in (False, True)
    ]
    assert results[0].deterministic() == results[1].deterministic()
    assert policy.count == 100
    assert results[0].names == ("Counting", "random")
    made = motet.evaluate(playing.Duet, lambda action_space: RandomPolicy(action_space), episodes=2, workers=workers)
    assert not made.failures()


def test_policies_get_their_seat_and_the_world(workers):
    class Curious(playing.Counting):
        def __init__(self, observation_space, action_space, agent, world):
            assert (agent, world["turns"], world["box"]) == (agent, 5, False)
            assert agent in ("left", "right")
            assert observation_space.shape == (4,)
            super().__init__(action_space, agent, world)

    assert not motet.evaluate(partial(playing.Duet, turns=5), Curious, episodes=2, workers=workers).failures()


def test_strings_name_policies():
    entry = as_given(
        "class=my.module.Policy,data=w.bin,kw.depth=3,kw.name=x,kw.deep=true,proportion=2,seat=a,isolate=yes"
    )
    assert entry.spec.factory == "my.module:Policy"
    assert entry.spec.arguments == {"data": "w.bin", "depth": 3, "name": "x", "deep": True}
    assert (entry.proportion, entry.seat, entry.isolate, entry.kind) == (2.0, "a", True, "agent")
    assert as_given('my:A,kw.a="1,2",kw.b=[3,{"c":4}],kw.d=x y').spec.arguments == {
        "a": "1,2",
        "b": [3, {"c": 4}],
        "d": "x y",
    }
    assert as_given("random").title == "random"
    assert as_given("my.module:Team,kind=team,name=us").title == "us"
    for text, why in {
        "nobody": "an existing run directory",
        "random,proportion=many": "proportion must be a number, got 'many'",
        "random,proportion=0": "proportion must be a finite number > 0, got 0",
        "random,colour=red": "policy must have options of the form class=",
        "class=a.B,run=runs/x": "policy must be one class, run or plan",
        "random,isolate=perhaps": "yes or no",
        "my:A,kind=crowd": "kind must be 'agent', 'joint' or 'team', got 'crowd'",
        "my:A,step=3": "does not take",
        "": "policy must be one class",
        "random,": "separated by commas",
        'my:A,kw.a="b': "quotes and brackets closed",
    }.items():
        with pytest.raises(SettingError, match=why):
            as_given(text)
    for wrong in (3, None, object()):
        with pytest.raises(SettingError, match="policy must be a run directory"):
            entries([wrong], ["a"])


def test_invalid_settings_are_refused():
    for wrong, why in {
        "episodes": "episodes must be an int >= 1, got 0",
        "jobs": "jobs must be an int >= 1, got 0",
        "max_failures": "max_failures must be an int >= 1, got 0",
        "max_processes": "max_processes must be an int >= 1, got 0",
    }.items():
        with pytest.raises(SettingError, match=why):
            EvaluationSettings(**{wrong: 0})
    with pytest.raises(SettingError, match=r"settings must be valid, got episode \(did you mean episodes\?\)"):
        motet.evaluate("matrix", "random", episode=3)
    with pytest.raises(SettingError, match="limits are only valid with isolate=True"):
        motet.evaluate("matrix", "random", limits=PolicyLimits())
    with pytest.raises(SettingError, match="a sandbox needs a separate process"):
        motet.evaluate("matrix", "random,isolate=no", sandbox="best-effort")
    with pytest.raises(SettingError, match=r"policies must be given for each of .*, got \[\'nobody\'\]"):
        motet.evaluate("matrix", {"nobody": "random"})
    with pytest.raises(SettingError, match="none for player_1"):
        motet.evaluate("matrix", ["random,seat=player_0"])
    with pytest.raises(SettingError, match="has no seat"):
        motet.evaluate("matrix", ["random,seat=player_0", "noop,seat=player_1", "random"])


def test_equal_policies_share_a_name_and_others_do_not():
    found = entries({"a": "random", "b": "random", "c": "noop,name=random"}, ["a", "b", "c"])
    assert [entry.title for entry in found] == ["random", "random", "random (2)"]
    first, second = playing.UpTo(None), playing.UpTo(None)
    assert [entry.title for entry in entries([first, second], ["a", "b"])] == ["UpTo", "UpTo (2)"]


# ---- runs and plans


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from motet.algorithms import DQNConfig

    path = tmp_path_factory.mktemp("runs") / "mine"
    config = DQNConfig(hidden=(8,), batch_size=8, min_rows=32, capacity=500, n_frames=3)
    motet.train(
        partial(MatrixGame, turns=10), config, motet.Settings(steps=100, engine="serial", checkpoint_every=50), run=path
    )
    return path


def test_a_run_plays_with_the_frame_stacking_of_its_training(workers, run):
    world = partial(MatrixGame, turns=10)
    results = [
        motet.evaluate(world, str(run), episodes=3, isolate=isolate, jobs=2, workers=workers)
        for isolate in (False, True)
    ]
    assert results[0].deterministic() == results[1].deterministic()
    assert not results[0].failures()
    policies = motet.load_policies(run)
    made = motet.as_world(world())
    made.reset(0)
    for policy in policies.values():
        policy.reset(0)
    while group := made.group():
        made.act([policies[made.agents[agent]].act(made.observe(agent)) for agent in group])
    assert results[0].episodes[0].returns == tuple(made.reward(agent) for agent in range(2)), "greedy: no chance in it"
    shared = motet.evaluate(world, str(run), episodes=3, isolate=True, max_processes=1, workers=workers)
    assert shared.deterministic() == results[0].deterministic(), "seats that share a process keep their own weights"
    one = motet.evaluate(
        world, [f"{run},agent=player_1,step=50,name=old", f"{run}/checkpoints/{100:012d}"], episodes=2, workers=workers
    )
    assert one.names == ("old", "mine@100")
    assert not one.failures()


def test_a_run_of_another_user_is_not_trusted(tmp_path, workers, run):
    import shutil

    from safetensors.numpy import load_file, save_file

    stranger = tmp_path / "stranger"
    shutil.copytree(run, stranger)
    config = json.loads((stranger / "config.json").read_text())
    for agent in config["agents"].values():
        agent["class"] = "os:system"
    (stranger / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingError, match=r"os:system.*--trust"):
        motet.evaluate("matrix", str(stranger), workers=workers)

    bent = tmp_path / "bent"
    shutil.copytree(run, bent)
    file = next((bent / "checkpoints" / f"{100:012d}").glob("player_0.safetensors"))
    arrays = load_file(file)
    save_file({**arrays, "state": arrays["state"][:-1].copy()}, file)
    result = motet.evaluate(partial(MatrixGame, turns=3), str(bent), episodes=1, workers=workers)
    assert result.failures() == {"bent": {"start": 1}}
    assert "trained in another world" in result.episodes[0].failures[0].detail
    save_file({**arrays, "state": arrays["state"].astype(np.float64)}, file)
    with pytest.raises(MotetError, match=r"float64.*expected one flat vector of finite float32"):
        motet.evaluate("matrix", str(bent), workers=workers)
    file.write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(MotetError, match="cannot be read"):
        motet.evaluate("matrix", str(bent), workers=workers)


def test_a_plan_plays(tmp_path, workers):
    from motet.plan import Robot, enumerate_states, solve
    from motet.worlds import Rooms

    rooms = Rooms("closet")
    wanted = {human: rooms.goals(human) for human in rooms.human_agent_indices}
    solve(enumerate_states(rooms, workers=1), wanted, robot=Robot(), workers=1).save(tmp_path / "closet")
    plan, goal = str(tmp_path / "closet"), json.dumps("1,2")
    given = {agent: f"{plan},kw.goal={goal}" if "human" in agent else plan for agent in rooms.possible_agents}
    results = [
        motet.evaluate(partial(Rooms, map="closet"), given, episodes=2, isolate=isolate, workers=workers)
        for isolate in (False, True)
    ]
    assert not results[0].failures(), results[0].episodes[0].failures
    assert results[0].deterministic() == results[1].deterministic()


# ---- parts


def test_drawing_an_episode_changes_nothing(workers):
    world = WORLDS["treasure_hunt"]
    plain, drawn = (
        motet.evaluate(world, ["random", "forager"], episodes=3, film=film, workers=workers) for film in ((), (1,))
    )
    assert plain.deterministic() == drawn.deterministic()
    frames = drawn.episodes[1].frames
    assert len(frames) == 11
    assert all(frame.startswith(b"\x89PNG") for frame in frames)
    one = drawn.episodes[1]
    assert [caption.partition(",")[0] for caption in one.captions] == [
        f"turn {i}" for i in range(0, one.turns + 1, len(drawn.agents))
    ]
    scores = ", ".join(f"{name}: {short(value)}" for name, value in zip(drawn.agents, one.returns, strict=True))
    assert one.captions[-1] == f"turn {one.turns}, {scores}"
    page = drawn.html()
    assert "Rendered episodes" in page
    assert "<script>" in page
    assert "forager" in page


@pytest.mark.parametrize(
    ("world", "why"),
    [(playing.Duet, "the world renders nothing"), (playing.Torn, "render() raised ZeroDivisionError: no canvas")],
)
def test_a_world_that_cannot_be_drawn_is_played_all_the_same(workers, world, why):
    said: list[str] = []
    result = motet.evaluate(world, "random", episodes=2, film=(1,), workers=workers, on_message=said.append)
    assert said == [f"episode 1 was not rendered: {why}"]
    assert not result.episodes[1].frames
    assert "was not rendered" in result.html()


def test_the_table_of_one_game_can_be_played_by_hand():
    plan = EpisodePlan(playing.Duet, {}, entries(["random", "noop"], ["left", "right"]), (False, False))
    table = Arena(plan)
    first, second = table.play(Task(0, (0, 1), (0,))), table.play(Task(0, (0, 1), (0,)))
    table.close()
    assert first.returns == second.returns
    assert first.decisions == (12, 12)


def test_intervals_use_students_t():
    assert student(0.95, 3) == pytest.approx(3.182446305284263, rel=1e-8)
    assert student(0.95, 5000) == pytest.approx(1.960438551, rel=1e-8)
    one = score([2.0, 4.0, 6.0, 8.0])
    assert (one.mean, one.deviation) == (5.0, pytest.approx(2.581988897))
    assert one.high - one.mean == pytest.approx(3.182446305 * 2.581988897 / 2)
    assert score([]) is None
    assert score([3.0]).high == float("inf")


def test_latency_quantiles_are_accurate_to_a_few_percent():
    latency, other = LatencyHistogram(), LatencyHistogram()
    times = np.random.default_rng(0).lognormal(-8, 1, 4000)
    for i, value in enumerate(times):
        (latency if i % 2 else other).add(float(value))
    latency.merge(other)
    for share in (0.1, 0.5, 0.99):
        assert latency.quantile(share) == pytest.approx(np.quantile(times, share), rel=0.05)
    assert (latency.count, latency.longest) == (4000, times.max())


def test_fillers_and_joint_spaces_are_elements():
    space = Dict(a=Box(2, 3, (2,)), b=Discrete(3, start=4))
    assert space.contains(filler(space))
    seen, actions = joint_spaces(["x", "y"], [space, Discrete(2)], [Discrete(3), Box(-1, 1, (1,))], [True, False])
    assert seen["masks"]["x"].n == 3
    assert set(seen["masks"].spaces) == {"x"}
    assert actions.contains(filler(actions))


def test_a_team_draws_from_streams_of_its_own():
    spaces = {"a": Discrete(50), "b": Discrete(50)}

    def steps(disturb):
        policy = TeamPolicy(lambda: playing.Team(spaces), ["a", "b"])
        policy.reset(3)
        found = []
        for _ in range(5):
            if disturb:
                np.random.rand(3)
            found.append(policy.act_jointly({"a": 0, "b": 0}, {}))
        return found

    np.random.seed(1)
    expected = np.random.rand(2).tolist()
    np.random.seed(1)
    calm = steps(disturb=False)
    assert np.random.rand(2).tolist() == expected, "and leaves the others' alone"
    assert steps(disturb=True) == calm


def test_the_evaluating_process_never_imports_a_policy():
    code = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        "import motet\n"
        "if __name__ == '__main__':\n"
        "    result = motet.evaluate('matrix', 'support.hostile_zoo:Honest', episodes=1, isolate=True)\n"
        "    print('support.hostile_zoo' in sys.modules, 'torch' in sys.modules, result.failures())\n"
    )
    script = Path(os.environ.get("TMPDIR", "/tmp")) / f"never-{os.getpid()}-{time.monotonic_ns()}.py"
    script.write_text(code)
    try:
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    finally:
        script.unlink()
    assert done.stdout.startswith("False False"), done.stdout + done.stderr


@pytest.mark.usefixtures("no_leaks")
def test_a_job_that_cannot_be_restarted_is_reported_and_no_process_stays(monkeypatch):
    with pytest.raises(StartError, match="no room"), JobPool(2) as workers:
        monkeypatch.setattr("motet.evaluation.jobs.Child", lambda *_: (_ for _ in ()).throw(StartError("no room")))
        workers._replace(workers._workers[0])
