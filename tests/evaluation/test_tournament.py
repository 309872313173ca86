"""An interrupted tournament continues where it stopped, and ends with the same table as without the interruption."""

import json
import signal
import subprocess
import sys
from functools import partial

import pytest
from support import TESTS, without_torch
from support import playing_policies as playing

import motet
from motet.errors import CorruptionError, SettingError
from motet.evaluation.jobs import JobPool
from motet.policy import PolicySpec
from motet.worlds import MatrixGame, TreasureHunt

WORLD = partial(MatrixGame, turns=6)
POLICIES = ["tit_for_tat", "random", "constant,kw.action=1,name=defector", playing.Recurrent]


@pytest.fixture(scope="module")
def workers():
    with JobPool(2) as made:
        yield made


def test_everybody_meets_everybody_on_every_seat(workers):
    result = motet.tournament(WORLD, POLICIES, rounds=2, workers=workers)
    assert len(result.games) == 6 * 2 * 2
    seatings = [game.policies for game in result.games]
    for first in result.names:
        for second in result.names:
            assert seatings.count((first, second)) == (0 if first == second else 2)
    cross = result.cross_table()
    assert cross["defector"]["tit_for_tat"] == (1.0, 4)
    assert cross["tit_for_tat"]["defector"] == (0.0, 4)
    assert next(iter(result.ratings())) == "defector"
    by_two = [(one.returns, two.returns) for one, two in zip(result.games[::2], result.games[1::2], strict=True)]
    assert any(one != two for one, two in by_two)


def test_same_seeds_same_table_for_any_jobs_and_isolation(workers):
    results = [
        motet.tournament(WORLD, POLICIES, rounds=2, seed=4, jobs=jobs, isolate=isolate, workers=workers)
        for jobs, isolate in ((1, False), (2, False), (2, True))
    ]
    for result in results[1:]:
        assert result.deterministic() == results[0].deterministic()
    other = motet.tournament(WORLD, POLICIES, rounds=2, seed=5, workers=workers)
    assert other.deterministic() != results[0].deterministic()


def test_more_seats_than_policies_and_more_policies_in_a_game(workers):
    world = partial(TreasureHunt, agents=3, size=9, turns=5)
    pairs = motet.tournament(world, ["random", "noop", "forager"], rounds=1, workers=workers)
    assert pairs.games[0].policies == ("random", "noop", "random")
    assert pairs.games[1].policies == ("noop", "random", "noop")
    all_three = motet.tournament(world, ["random", "noop", "forager"], rounds=1, group=3, workers=workers)
    assert len(all_three.games) == 3
    assert [sum(game.policies[seat] == "noop" for game in all_three.games) for seat in range(3)] == [1, 1, 1]
    assert all_three.cross_table()["noop"]["random"][1] == 3
    chosen = motet.tournament(
        world, ["random", "noop", "forager"], rounds=1, pairings=[("forager", "noop")], workers=workers
    )
    assert chosen.pairings == (("noop", "forager"),)
    assert chosen.ratings()["random"].games == 0


def test_a_tournament_continues_without_playing_games_again(tmp_path, workers):
    path = tmp_path / "cup"
    whole = motet.tournament(WORLD, POLICIES, rounds=3, dir=path, workers=workers)
    lines = (path / "games.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 36
    for kept, torn in ((0, b""), (17, b""), (17, b'{"number": 17, "pol')):
        marked = [json.dumps({**json.loads(line), "returns": [7.0, -7.0]}).encode() + b"\n" for line in lines[:kept]]
        (path / "games.jsonl").write_bytes(b"".join(marked) + torn)
        said: list[str] = []
        again = motet.tournament(WORLD, POLICIES, rounds=3, dir=path, jobs=2, workers=workers, on_message=said.append)
        assert [game.returns for game in again.games[:kept]] == [(7.0, -7.0)] * kept, "taken from the book, not played"
        assert again.games[kept:] == whole.games[kept:]
        assert len((path / "games.jsonl").read_bytes().splitlines()) == 36
        once_more = motet.tournament(WORLD, POLICIES, rounds=3, dir=path, workers=workers)
        assert once_more.deterministic() == again.deterministic(), "what was written can be read"
        assert ("17 of 36 games were played before" in said) == (kept == 17)
    (path / "games.jsonl").write_bytes(b"".join(lines[:20]))
    assert (
        motet.tournament(WORLD, POLICIES, rounds=3, dir=path, workers=workers).deterministic() == whole.deterministic()
    )


def test_another_tournament_does_not_continue_this_one(tmp_path, workers):
    motet.tournament(WORLD, POLICIES[:2], rounds=1, dir=tmp_path, workers=workers)
    for changed, what in (({"rounds": 2}, "settings"), ({"seed": 9}, "settings")):
        with pytest.raises(SettingError, match=f"another tournament: {what} differ"):
            motet.tournament(WORLD, POLICIES[:2], dir=tmp_path, workers=workers, **{"rounds": 1, **changed})
    with pytest.raises(SettingError, match="policies, pairings differ"):
        motet.tournament(WORLD, POLICIES[1:3], rounds=1, dir=tmp_path, workers=workers)
    (tmp_path / "games.jsonl").write_text('{"number": 4}\n')
    with pytest.raises(CorruptionError, match="line 1 is game 4"):
        motet.tournament(WORLD, POLICIES[:2], rounds=1, dir=tmp_path, workers=workers)


def test_a_disqualified_policy_stays_disqualified_when_the_tournament_continues(tmp_path, workers):
    policies = [PolicySpec(playing.FailsAt, {"turn": 2}, "hostile"), "random", "noop"]
    whole = motet.tournament(playing.Duet, policies, rounds=3, max_failures=4, dir=tmp_path, workers=workers)
    assert whole.out
    lines = (tmp_path / "games.jsonl").read_bytes().splitlines(keepends=True)
    for kept in (2, 9):
        (tmp_path / "games.jsonl").write_bytes(b"".join(lines[:kept]))
        again = motet.tournament(playing.Duet, policies, rounds=3, max_failures=4, dir=tmp_path, workers=workers)
        assert again.deterministic() == whole.deterministic()


def test_a_forfeit_is_a_loss(workers):
    policies = [PolicySpec(playing.FailsAt, {"turn": 2}, "hostile"), "random", "noop"]
    result = motet.tournament(playing.Duet, policies, rounds=1, stand_in="forfeit", workers=workers)
    assert all(share == 0.0 for share, _ in result.cross_table()["hostile"].values())
    assert list(result.ratings())[-1] == "hostile"


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import motet
from support import playing_policies
if __name__ == "__main__":
    result = motet.tournament(playing_policies.Duet, ["random", playing_policies.Slow], rounds=100, jobs=2,
                              dir={path!r}, on_progress=lambda done, total: print(done, flush=True))
    print("end", result.partial, len(result.games), flush=True)
"""


def test_a_real_interruption_and_a_kill(tmp_path, workers):
    script, path = tmp_path / "script.py", tmp_path / "cup"
    script.write_text(SCRIPT.format(here=str(TESTS), path=str(path)))
    done = 0
    for number in (signal.SIGINT, signal.SIGKILL):
        child = subprocess.Popen([sys.executable, str(script)], env=without_torch(), stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        first = int(child.stdout.readline())
        assert first == done + 1, "finished games are not played again"
        while int(child.stdout.readline()) < done + 10:
            pass
        child.send_signal(number)
        text, _ = child.communicate(timeout=60)
        done = (path / "games.jsonl").read_bytes().count(b"\n")
        if number == signal.SIGINT:
            assert text.splitlines()[-1] == f"end True {done}"
    assert 20 <= done < 200
    expected = motet.tournament(playing.Duet, ["random", playing.Slow], rounds=done // 2, workers=workers)
    lines = [json.loads(line) for line in (path / "games.jsonl").read_text().splitlines()]
    assert [tuple(line["returns"]) for line in lines][: done // 2 * 2] == [game.returns for game in expected.games]


def test_tournaments_that_cannot_be_played_are_refused(tmp_path):
    for policies, more, why in (
        (["random"], {}, "policies must be two or more, got only random"),
        (["random", "noop"], {"group": 3}, "group must be 2, got 3: there are 2 policies and 2 seats"),
        (["random", "noop"], {"rounds": 0}, "rounds must be an int >= 1, got 0"),
        (["random", "noop,seat=player_0"], {}, "seat is not valid in a tournament"),
        (["random", "noop"], {"pairings": [("random", "me")]}, "pairings must be of random, noop, got me"),
        (
            ["random", "noop"],
            {"pairings": [("random", "noop"), ("noop", "random")]},
            "pairings must be different, got one twice",
        ),
        (["random", "random"], {}, "policies must have different names"),
    ):
        with pytest.raises(SettingError, match=why):
            motet.tournament("matrix", policies, **more)
    with pytest.raises(SettingError, match="world must have two seats or more, got 1 seat"):
        motet.tournament("gym:CartPole-v1", ["random", "noop"])
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot be written"):
        motet.tournament("matrix", ["random", "noop"], dir=tmp_path / "file")
