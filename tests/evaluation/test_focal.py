"""What a policy adds to a team: the same seeds and seats, with the focal policy and with the background alone."""

import json
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv
from support import playing_policies as playing

import motet
from motet.cli import main
from motet.errors import SettingError
from motet.evaluation.jobs import JobPool
from motet.policy import PolicySpec


class Commons(ParallelEnv):
    """Four agents. What one puts in, it gets back; half as much goes to every other agent. The seed adds a bonus."""

    metadata = {"name": "commons"}  # noqa: RUF012

    def __init__(self, seats=4):
        self.possible_agents = [f"agent_{i}" for i in range(seats)]
        self.agents = []

    def observation_space(self, agent):
        return Box(0, 1, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(8)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        self._bonus = np.random.default_rng(seed).normal(0, 100)
        return self._seen(), {name: {} for name in self.agents}

    def _seen(self):
        return {name: np.zeros(1, np.float32) for name in self.agents}

    def step(self, actions):
        total = sum(actions.values())
        rewards = {name: float(self._bonus + act + 0.5 * (total - act)) for name, act in actions.items()}
        names, self.agents = self.agents, []
        ended, cut = dict.fromkeys(names, True), dict.fromkeys(names, False)
        return {name: np.zeros(1, np.float32) for name in names}, rewards, ended, cut, {name: {} for name in names}


@pytest.fixture(scope="module")
def workers():
    with JobPool(2) as made:
        yield made


GIVER, MISER, HALF = (
    f"constant,kw.action={act},name={name}" for act, name in ((3, "giver"), (1, "miser"), (2, "half"))
)


def test_the_changes_are_those_worked_out_by_hand(workers):
    result = motet.evaluate_focal(Commons, GIVER, MISER, episodes=6, workers=workers)
    assert (result.focal, result.background) == ("giver", ("miser",))
    changes = result.changes()
    for what, change in (("focal", 2.0), ("others", 1.0), ("team", 5.0)):
        one = changes[what]
        assert one.change.mean == pytest.approx(change) and one.change.count == 6
        assert one.change.low == pytest.approx(change) and one.change.high == pytest.approx(change), "paired by episode"
        assert one.mixed.mean - one.background.mean == pytest.approx(change)
        assert one.mixed.high - one.mixed.low > 10, "unpaired, the seeds would hide it"
    two = motet.evaluate_focal(Commons, GIVER, MISER, focal_seats=2, episodes=4, workers=workers).changes()
    assert [two[name].change.mean for name in ("focal", "others", "team")] == pytest.approx([3.0, 2.0, 10.0])
    every = motet.evaluate_focal(Commons, GIVER, MISER, focal_seats=4, episodes=2, workers=workers).changes()
    assert every["others"] is None and every["team"].change.mean == pytest.approx(20.0)


def test_only_the_focal_seats_differ_between_the_two_games(workers):
    result = motet.evaluate_focal(Commons, GIVER, [MISER, HALF], focal_seats=2, episodes=12, seed=5, workers=workers)
    seats, backgrounds = set(), set()
    for mixed, alone in result.pairs():
        own = tuple(i for i, name in enumerate(mixed.policies) if name == "giver")
        assert len(own) == 2 and "giver" not in alone.policies
        assert all(mixed.policies[i] == alone.policies[i] for i in range(4) if i not in own)
        seats.add(own)
        backgrounds.add(alone.policies)
    assert len(seats) > 3 and len(backgrounds) > 3, "drawn for each episode"
    fixed = motet.evaluate_focal(Commons, GIVER, MISER, focal_seats=["agent_1", "agent_3"], episodes=2, workers=workers)
    assert {mixed.policies for mixed, _ in fixed.pairs()} == {("miser", "giver", "miser", "giver")}


def test_the_same_bytes_for_any_number_of_jobs(workers):
    results = [
        motet.evaluate_focal(
            playing.Duet, "random", ["noop", GIVER], episodes=5, jobs=jobs, isolate=isolate, workers=workers
        )
        for jobs, isolate in ((1, False), (2, False), (2, True))
    ]
    assert len({one.deterministic() for one in results}) == 1
    other = motet.evaluate_focal(playing.Duet, "random", ["noop", GIVER], episodes=5, seed=1, workers=workers)
    assert other.deterministic() != results[0].deterministic()
    plain = json.loads(results[0].deterministic())
    assert plain["focal"] == "random" and [row["seats"] for row in plain["changes"]] == ["focal", "others", "team"]
    assert len(plain["games"]) == 10


def test_a_pair_without_both_games_does_not_count(workers):
    hostile = PolicySpec(playing.FailsAt, {"turn": 1}, "hostile")
    result = motet.evaluate_focal(Commons, hostile, MISER, episodes=3, stand_in="forfeit", workers=workers)
    assert result.pairs() == [] and result.changes() == {"focal": None, "others": None, "team": None}
    assert result.failures() == {"hostile": 3}
    assert "at my turn" in result.html()


def test_settings_that_cannot_be_compared_are_refused(workers):
    for args, more, why in (
        ((GIVER, []), {}, "background must be one or more policies, got none"),
        ((GIVER, GIVER), {}, "policies must have different names .name=…., got giver, giver"),
        ((GIVER, MISER), {"focal_seats": 5}, "focal_seats must be 1 to 4, or names of seats, got 5"),
        ((GIVER, MISER), {"focal_seats": 0}, "focal_seats must be 1 to 4, or names of seats, got 0"),
        (
            (GIVER, MISER),
            {"focal_seats": ["you"]},
            "focal_seats must be some of agent_0, agent_1, agent_2, agent_3, got you",
        ),
        ((GIVER + ",seat=agent_0", MISER), {}, "seat is not valid with focal and background policies"),
        ((GIVER + ",proportion=2", MISER), {}, "proportion is not valid for the focal policy"),
        ((GIVER, MISER), {"film": (0,)}, "film is not valid with focal and background policies"),
    ):
        with pytest.raises(SettingError, match=why):
            motet.evaluate_focal(Commons, *args, workers=workers, **more)


def test_by_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [
        "eval",
        "matrix",
        "--focal",
        "constant,kw.action=1,name=defector",
        "--background",
        "tit_for_tat",
        "-n",
        "4",
    ]
    assert main([*command, "--html", "page.html", "--out", "out.json"]) == 0
    shown = capsys.readouterr().out
    assert "defector" in shown and "change" in shown and "focal seats" in shown and "other seats" in shown
    assert "What defector changes" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "out.json").read_text())["result"]["settings"]["focal_seats"] == 1
    for more, why in (
        (["-p", "random"], "policy is not valid with --focal"),
        (["--video", "a.gif"], "video is not valid with --focal"),
    ):
        assert main([*command, *more]) == 2
        assert why in capsys.readouterr().err
    assert main(["eval", "matrix", "--focal", "random"]) == 2
    assert "background must be one or more policies" in capsys.readouterr().err
    assert main(["eval", "matrix", "--background", "random", "-p", "random"]) == 2
    assert "background is only valid with --focal" in capsys.readouterr().err


def test_a_world_of_one_seat_has_a_team_of_one(workers):
    changes = motet.evaluate_focal(partial(Commons, seats=1), GIVER, MISER, episodes=2, workers=workers).changes()
    assert changes["others"] is None and changes["focal"].change.mean == changes["team"].change.mean == pytest.approx(
        2.0
    )
