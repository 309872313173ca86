"""Nothing that is finished gets lost: an episode that fails costs that episode alone."""

import json
from functools import partial
from pathlib import Path

import pytest
from support import failing_code as foreign
from support.failing_code import Market, SoreLoser, Trader

import motet
from motet.cli import command as cli
from motet.errors import SettingError, StartError
from motet.evaluation.episode import Arena, EpisodePlan, Task
from motet.evaluation.evaluate import EvaluationSettings
from motet.evaluation.jobs import JobPool
from motet.policies.entries import entries
from motet.policy import PolicySpec
from motet.seeds import seed_for

EPISODES = 10


@pytest.fixture(scope="module")
def workers():
    with JobPool(2) as made:
        yield made


@pytest.fixture(scope="module")
def sound(workers):
    """What is earned where nothing is wrong."""
    return motet.evaluate(Market, [Trader, "random"], episodes=EPISODES, seed=3, workers=workers)


def played(world, workers, **more):
    return motet.evaluate(world, [Trader, "random"], **{"episodes": EPISODES, "seed": 3, "workers": workers, **more})


def is_bad(below=0.3):
    """The numbers of the episodes that begin with a low price, found by playing them."""
    world, found = Market(below=below), []
    for number in range(EPISODES):
        world.reset(seed_for(3, 21, number))
        if world.bad_day is not None:
            found.append(number)
    assert 2 <= len(found) <= 5
    return found


@pytest.mark.parametrize("fault", ["bug", "ragged", "leaves", "circle"])
def test_if_a_world_raises_only_that_episode_fails(workers, sound, fault):
    """Also if it stays broken, if it raises between two questions, and if it ends the interpreter."""
    bad = is_bad()
    world = partial(Market, fault=fault)
    said: list[str] = []
    results = [
        played(world, workers, jobs=jobs, isolate=isolate, pooled=pooled, on_message=said.append)
        for jobs, isolate, pooled in ((1, False, True), (2, False, False), (2, True, True))
    ]
    first = results[0]
    assert [one.number for one in first.episodes] == list(range(EPISODES))
    assert [one.number for one in first.episodes if one.failed == "world"] == bad
    for own, fair in zip(first.episodes, sound.episodes, strict=True):
        assert own.policies == fair.policies
        assert own.number in bad or own.returns == fair.returns
    assert first.scores()["Trader"].count == sum("Trader" in one.policies for one in first.episodes if not one.failed)
    assert first.team().count == EPISODES - len(bad)
    assert not first.partial and not first.failures() and first.failed() == {"world": len(bad)}
    leaves = "SystemExit: the exchange is closed"
    what = {"bug": "IndexError", "ragged": "shape", "leaves": leaves, "circle": "in a circle"}[fault]
    assert all(what in first.episodes[number].detail for number in bad)
    assert sum(f"episode {bad[0]} failed" in line and what in line for line in said) == len(results)
    for result in results[1:]:
        assert result.deterministic() == first.deterministic()
        assert result == first and hash(result) == hash(first)


def test_the_limit_counts_in_the_order_of_episodes(workers):
    world = partial(Market, fault="bug", below=0.5)
    whole = played(world, workers, episodes=40, max_failed_episodes=40)
    bad = [one.number for one in whole.episodes if one.failed]
    assert len(bad) > 10 and not whole.partial
    results = [played(world, workers, episodes=40, jobs=jobs, max_failed_episodes=3) for jobs in (1, 2)]
    for result in results:
        assert result.partial and "max_failed_episodes" in result.stopped
        assert result.episodes == whole.episodes[: bad[2] + 1]
        assert result.deterministic() == results[0].deterministic()
    assert len(played(world, workers, episodes=40).episodes) == bad[9] + 1, "ten by default"
    exact = played(world, workers, episodes=bad[2] + 1, max_failed_episodes=3)
    assert not exact.partial and not exact.stopped, "the last episode was the last failure too"
    with pytest.raises(SettingError, match="max_failed_episodes must be an int >= 1, got 0"):
        EvaluationSettings(max_failed_episodes=0)


@pytest.mark.parametrize(("fault", "detail"), [("dies", "SIGKILL"), ("vanishes", "exit code 3"), ("hangs", "hang")])
def test_if_a_job_ends_or_hangs_only_its_episode_fails(sound, fault, detail):
    bad = is_bad(0.15)
    with JobPool(2, hang_s=0.5 if fault == "hangs" else 300.0) as workers:
        for jobs in (1, 2):
            result = played(partial(Market, fault=fault, below=0.15), workers, jobs=jobs)
            assert [one.number for one in result.episodes if one.failed == "job"] == bad
            assert [one.number for one in result.episodes] == list(range(EPISODES)) and not result.partial
            for own, fair in zip(result.episodes, sound.episodes, strict=True):
                assert own.policies == fair.policies
                assert own.number in bad or own.returns == fair.returns
            assert all(detail in result.episodes[number].detail for number in bad)


def test_a_world_that_cannot_be_made_again_ends_with_what_was_played(sound):
    bad = is_bad()
    with JobPool(1) as workers:
        result = played(partial(foreign.MarketOnce, fault="bug"), workers)
    assert [one.failed for one in result.episodes] == [""] * bad[0] + ["world"] * min(10, EPISODES - bad[0])
    assert "address already in use" in result.episodes[-1].detail


def test_jobs_that_cannot_be_started_again_keep_what_was_played(monkeypatch, sound):
    bad = is_bad()

    def refuse(*_):
        raise StartError("player-0 could not be started: no room")

    with JobPool(1) as workers:
        monkeypatch.setattr(JobPool, "_start", refuse)
        said: list[str] = []
        result = played(partial(Market, fault="dies"), workers, on_message=said.append)
    assert result.episodes == sound.episodes[: bad[0]] and result.partial
    assert "no room" in result.stopped and any("no room" in line for line in said)


def test_probing_for_masks_affects_no_episode(workers, sound):
    """Jobs play a little before the first episode. What goes wrong there is no episode's."""
    for isolate in (False, True):
        assert played(foreign.MarketWithoutZero, workers, isolate=isolate).episodes == sound.episodes


def test_faults_of_others_are_not_blamed_on_the_world(monkeypatch):
    plan = EpisodePlan(Market, {}, entries(["random", "noop"], ["buyer", "seller"]), (False, False))
    table = Arena(plan)

    def refuse(*_):
        raise StartError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Arena, "_make", refuse)
        with pytest.raises(StartError, match="no room"):
            table.play(Task(0, (0, 1), (0,)))
    assert not table.play(Task(0, (0, 1), (0,))).failed
    table.close()


def test_all_episodes_may_fail(workers):
    result = played(partial(Market, fault="bug", below=2.0), workers, episodes=3)
    assert [one.failed for one in result.episodes] == ["world"] * 3
    assert result.scores() == {"Trader": None, "random": None} and result.team() is None
    assert "Failed episodes are not counted" in result.html()
    json.dumps(result.as_dict(), allow_nan=False)


def test_timings_are_no_part_of_equality(workers, sound):
    again = played(Market, workers, jobs=2)
    assert again.measured != sound.measured
    assert again == sound and hash(again) == hash(sound) and len({again, sound}) == 1
    other = played(Market, workers, seed=4)
    assert other != sound and other.deterministic() != sound.deterministic()
    assert sound != "an evaluation"
    games = [motet.tournament(Market, [Trader, "random"], rounds=1, workers=workers) for _ in range(2)]
    assert games[0] == games[1] and hash(games[0]) == hash(games[1])


# ---- as commands


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")


EVAL = [
    "eval",
    "support.failing_code:Market",
    "-p",
    "support.failing_code:Trader",
    "-p",
    "random",
    "--seed",
    "3",
    "-n",
    str(EPISODES),
]


@pytest.mark.usefixtures("in_a_folder")
def test_the_command_writes_everything_and_exits_with_1(capsys, sound):
    files = ["--out", "out.json", "--html", "page.html", "--video", "film.gif", "--film", str(is_bad()[0])]
    assert cli.main([*EVAL, "--world.fault", "bug", *files]) == 1
    out, err = capsys.readouterr()
    bad = is_bad()
    assert f"{EPISODES} episodes, seed 3" in out and "failed episodes" in out and "IndexError" in out
    assert f"{len(bad)} of {EPISODES} episodes failed and are not counted" in err
    plain = json.loads(Path("out.json").read_text())
    assert [one["number"] for one in plain["result"]["episodes"] if one["failed"] == "world"] == bad
    assert plain["result"]["failed"] == {"world": len(bad)}
    told = plain["measured"]["failed_episodes"]
    assert [one["episode"] for one in told] == bad and all("IndexError" in one["detail"] for one in told)
    assert set(told[0]["policies"]) == {"Trader", "random"}
    assert "IndexError" in Path("page.html").read_text()


@pytest.mark.usefixtures("in_a_folder")
def test_the_command_past_the_limit_exits_with_1_too(capsys):
    given = [*EVAL, "--world.fault", "bug", "--max-failed-episodes", "1", "--out", "out.json", "--html", "page.html"]
    assert cli.main(given) == 1
    out, _ = capsys.readouterr()
    assert "partial: " in out and "max_failed_episodes" in out
    assert json.loads(Path("out.json").read_text())["result"]["partial"] is True
    assert "max_failed_episodes" in Path("page.html").read_text()


# ---- tournaments


def cup(tmp_path, workers, world=Market, **more):
    loser = PolicySpec(SoreLoser, {"flag": str(tmp_path / "calm"), **more.pop("loser", {})}, "loser")
    return motet.tournament(world, [loser, Trader, "random"], rounds=4, seed=1, workers=workers, **more)


def test_a_voided_game_is_played_again_by_a_later_call(tmp_path, workers):
    (tmp_path / "calm").touch()
    fair = cup(tmp_path, workers, dir=tmp_path / "fair")
    assert not fair.failed()
    (tmp_path / "calm").unlink()
    said: list[str] = []
    voided = cup(tmp_path, workers, dir=tmp_path / "cup", on_message=said.append)
    void = [game.number for game in voided.games if game.failed == "job"]
    assert 0 < len(void) < 10 and not voided.partial and len(voided.games) == len(fair.games)
    for own, same in zip(voided.games, fair.games, strict=True):
        assert own.policies == same.policies and (own.failed or own.returns == same.returns)
    assert sum(one.games for one in voided.ratings().values()) == 2 * (len(fair.games) - len(void))
    assert sum("without isolation" in line and "loser" in line for line in said) == 1
    assert voided.deterministic() == cup(tmp_path, workers, jobs=2).deterministic()
    (tmp_path / "calm").touch()
    said.clear()
    again = cup(tmp_path, workers, dir=tmp_path / "cup", on_message=said.append)
    assert again.deterministic() == fair.deterministic()
    assert f"{len(fair.games) - len(void)} of {len(fair.games)} games were played before" in said
    assert not any("without isolation" in line for line in said)
    before = (tmp_path / "cup" / "games.jsonl").read_bytes()
    assert len(before.splitlines()) == len(fair.games) + len(void), "nothing that was written is taken back"
    once_more = cup(tmp_path, workers, dir=tmp_path / "cup")
    assert once_more == again and (tmp_path / "cup" / "games.jsonl").read_bytes() == before


def test_a_game_of_a_broken_world_is_not_played_again(tmp_path, workers):
    (tmp_path / "calm").touch()
    broken = partial(Market, fault="bug", below=0.4)
    first = cup(tmp_path, workers, broken, dir=tmp_path / "cup")
    assert first.failed().keys() == {"world"} and not first.partial
    before = (tmp_path / "cup" / "games.jsonl").read_bytes()
    assert cup(tmp_path, workers, broken, dir=tmp_path / "cup") == first
    assert (tmp_path / "cup" / "games.jsonl").read_bytes() == before
    again = cup(tmp_path, workers, broken, dir=tmp_path / "cup")
    assert [game.detail for game in again.games] == [game.detail for game in first.games], "and is still explained"


def test_a_limit_that_stopped_a_tournament_can_be_raised(tmp_path, workers):
    (tmp_path / "calm").touch()
    broken = partial(Market, fault="bug", below=0.6)
    whole = cup(tmp_path, workers, broken, max_failed_episodes=100)
    assert sum(whole.failed().values()) > 4
    short = cup(tmp_path, workers, broken, dir=tmp_path / "cup", max_failed_episodes=2)
    assert short.partial and "max_failed_episodes" in short.stopped and sum(short.failed().values()) == 2
    same = cup(tmp_path, workers, broken, dir=tmp_path / "cup", max_failed_episodes=2)
    assert same == short
    longer = cup(tmp_path, workers, broken, dir=tmp_path / "cup", max_failed_episodes=100, jobs=2)
    assert longer.games == whole.games and not longer.partial


def test_later_games_affected_by_a_replayed_game_are_played_again_too(tmp_path, workers):
    """A policy that is out after fewer games than before must not be in what was played with it."""
    flaw = {"how": "flaw", "share": 2}
    (tmp_path / "calm").touch()
    loser = {"flag": str(tmp_path / "calm")}

    def games(path=None, seen=None):
        spec = PolicySpec(Flawed, {**loser, "share": flaw["share"]}, "flawed")
        return motet.tournament(
            Market,
            [spec, Trader],
            rounds=12,
            seed=1,
            max_failures=4,
            dir=path,
            workers=workers,
            on_message=(seen or print),
        )

    fair = games()
    assert fair.out
    (tmp_path / "calm").unlink()
    voided = games(tmp_path / "cup")
    assert voided.failed() == {"job": 1} and voided.out["flawed"] > fair.out["flawed"]
    (tmp_path / "calm").touch()
    again = games(tmp_path / "cup")
    assert again.deterministic() == fair.deterministic()
    assert games(tmp_path / "cup").deterministic() == fair.deterministic()


class Flawed(SoreLoser):
    """Raises in some games; in the first of them it takes the process along instead, while the file is missing."""

    def act(self, observation, mask=None):
        action = Trader.act(self, observation, mask)
        if self.asked == 3 and self.loses:
            if not Path(self.flag).exists() and self.rng.random() < 2 and self.first():
                foreign.Market.vanishes(self)
            raise ValueError("cannot lose")
        return action

    def first(self):
        mark = Path(self.flag + "-done")
        state = repr(self.rng.getstate()[1][:3])
        if not mark.exists():
            mark.write_text(state)
        return mark.read_text() == state


@pytest.mark.usefixtures("in_a_folder")
def test_the_command_of_a_tournament_writes_everything_and_exits_with_1(capsys):
    given = ["tournament", "support.failing_code:Market", "-p", "support.failing_code:SoreLoser,kw.share=2,name=loser"]
    given += ["-p", "support.failing_code:Trader,name=trader", "--rounds", "4", "--dir", "cup"]
    assert cli.main([*given, "--out", "out.json", "--html", "page.html"]) == 1
    out, err = capsys.readouterr()
    plain = json.loads(Path("out.json").read_text())["result"]
    void = [game["number"] for game in plain["games"] if game["failed"] == "job"]
    assert void and len(plain["games"]) == 8 and plain["failed"] == {"job": len(void)}
    assert f"{len(void)} of 8 games failed and are not counted" in err
    assert "failed games" in out and "exit code 3" in out and "exit code 3" in Path("page.html").read_text()
    assert cli.main(given) == 1, "again"
    assert "exit code 3" in capsys.readouterr().out
