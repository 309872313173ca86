"""Self-play: the choice of opponents, the stored results, and that other parts of the run do not depend on them."""

import functools
import json
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from support.coins import QUICK, Coins, quick
from support.killer import BRISK, Killer
from support.stand_in import StandIn

from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.errors import SettingError
from motet.policy import PLAYER, ConstantPolicy
from motet.system.memory import Segment
from motet.training.league import _RING, NEWEST, Draw, League, LeagueBoard, LeagueTable, Results, Standings, anchor
from motet.training.opponents import Frozen, Newest, Scripted, SelfPlay, Versus
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.world import as_world
from motet.world.batch import LoopedWorlds, VectorWorlds
from motet.worlds import Cleanup, Hockey, MatrixGame

WIDTH = 16  # weights of the stand-in


def board(league=None, anchors=("heads", "tails"), weights=WIDTH, actors=2):
    league = league or League(snapshot_every=100, review_every=10, pool=3)
    segment = Segment(LeagueBoard.layout(league, len(anchors), weights, actors))
    return LeagueBoard(league, anchors, weights, actors, segment)


def numbered(n):
    return np.full(WIDTH, n, np.float32)


# Chances


def test_chances_follow_the_formulas():
    rates = np.array([0.2, 0.5, 0.8])
    for choice, weights in (
        ("variance", [0.16, 0.25, 0.16]),
        ("hard", [0.64, 0.25, 0.04]),
        ("even", [1.0, 1.0, 1.0]),
    ):
        league = League(choice=choice, anchor_share=0.4, self_share=0.25)
        anchors, snapshots, newest = league.chances(rates, rates)
        expected = np.array(weights) / np.sum(weights)
        np.testing.assert_allclose(anchors, 0.4 * expected)
        np.testing.assert_allclose(snapshots, 0.45 * expected)
        assert newest == pytest.approx(0.15)


def test_every_opponent_keeps_a_positive_probability():
    for rate in (0.0, 1.0):
        for choice in ("variance", "hard"):
            _, snapshots, _ = League(choice=choice).chances(np.zeros(0), np.array([rate, 0.5]))
            assert snapshots.min() > 0


def test_without_anchors_or_snapshots_the_others_take_their_part():
    none = np.zeros(0)
    assert League(self_share=0.0).chances(none, none)[2] == 1.0
    anchors, _, newest = League(anchor_share=0.3, self_share=0.0).chances(np.array([0.5]), none)
    assert (anchors.tolist(), newest) == ([0.3], 0.7)
    _, snapshots, newest = League(anchor_share=0.3, self_share=0.5).chances(none, np.array([0.5]))
    assert (snapshots.tolist(), newest) == ([0.5], 0.5)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"pool": 0}, "pool must be an int >= 1, got 0"),
        ({"block": 0}, "block must be an int >= 1, got 0"),
        ({"anchor_share": 1.5}, r"anchor_share must be a number from 0 to 1, got 1\.5"),
        ({"margin": -1.0}, r"margin must be a finite number >= 0 or None, got -1\.0"),
        ({"choice": "luck"}, "choice must be 'variance', 'hard' or 'even', got 'luck'"),
        ({"out": "best"}, "out must be 'oldest' or 'weakest', got 'best'"),
    ],
)
def test_bad_settings_say_what_was_given_and_expected(bad, says):
    with pytest.raises(SettingError, match=says):
        League(**bad)


# Results


def test_results_are_read_once_and_in_order():
    ring = np.zeros(_RING, np.uint64)
    told = Results(ring)
    told.tell(anchor(0), 3.0, margin=1.0)
    told.tell(7, -3.0, margin=1.0)
    told.tell(NEWEST, 1.0, margin=1.0)
    news, heard, lost = Results.hear(ring, 0)
    assert (news, heard, lost) == ([(anchor(0), 2), (7, 0), (NEWEST, 1)], 3, 0)
    assert Results.hear(ring, heard) == ([], 3, 0)
    Results(ring).tell(anchor(1), 9.0, margin=1.0)  # a successor goes on where its predecessor died
    assert Results.hear(ring, heard) == ([(anchor(1), 2)], 4, 0)


def test_results_that_are_written_over_are_counted():
    ring = np.zeros(_RING, np.uint64)
    told = Results(ring)
    for n in range(2 * _RING + 5):
        told.tell(1 + n, 0.0, margin=0.0)
    news, heard, lost = Results.hear(ring, 3)
    assert lost == _RING + 2
    assert heard == 2 * _RING + 5
    assert [opponent for opponent, _ in news] == list(range(_RING + 6, 2 * _RING + 6))


# The table


def test_the_table_changes_at_fixed_steps_only():
    shared = board()
    table = LeagueTable(shared)
    assert [step for step in range(60) if table.due(step) and not table.review(step, numbered(step))] == [
        10, 20, 30, 40, 50,
    ]  # fmt: skip
    standings = Standings(shared)
    standings.refresh()
    assert standings.pool() == []
    for step in (95, 100, 105, 199, 207):
        if table.due(step):
            table.review(step, numbered(step))
    standings.refresh()
    assert standings.pool() == [100, 207]
    np.testing.assert_array_equal(standings.weights(207), numbered(207))


@pytest.mark.parametrize(("out", "left"), [("oldest", [200, 300, 400]), ("weakest", [100, 300, 400])])
def test_the_pool_is_bounded(out, left):
    shared = board(League(snapshot_every=100, review_every=10, pool=3, out=out))
    table, told = LeagueTable(shared), Results(shared.results[1])
    for step in (100, 200, 300):
        table.review(step, numbered(step))
    for number, advantage in ((1, -1.0), (2, 1.0), (2, 1.0), (3, 0.0)):
        told.tell(number, advantage, margin=0.0)
    table.review(400, numbered(400))
    standings = Standings(shared)
    standings.refresh()
    assert sorted(standings.pool()) == left
    for step in left:
        np.testing.assert_array_equal(standings.weights(step), numbered(step))
    (newcomer,) = [row for row in standings.as_dict()["opponents"] if row["name"] == "step 400"]
    assert (newcomer["games"], newcomer["win_rate"]) == (0, 0.5)


def test_win_rates_are_measured_and_determine_the_opponents():
    shared = board(League(snapshot_every=100, review_every=10, pool=2, anchor_share=0.5, choice="hard"))
    table = LeagueTable(shared)
    for _ in range(200):
        for actor in (0, 1):
            told = Results(shared.results[actor])
            told.tell(anchor(0), 5.0, margin=1.0)  # always won
            told.tell(anchor(1), -5.0, margin=1.0)  # always lost
        table.review(10, numbered(0))
    rates = table.rates()
    assert rates["win_heads"] > 0.97
    assert rates["win_tails"] < 0.03
    standings = Standings(shared)
    standings.refresh()
    heads, tails = standings.as_dict()["opponents"]
    assert (heads["games"], tails["games"]) == (400, 400)
    assert tails["chance"] > 0.49
    assert 0 < heads["chance"] < 0.01


def test_results_of_a_removed_snapshot_do_not_count():
    shared = board()
    table = LeagueTable(shared)
    for step in (100, 200, 300, 400):  # the first one is out
        table.review(step, numbered(step))
    Results(shared.results[0]).tell(1, 1.0, margin=0.0)
    table.review(410, numbered(0))
    standings = Standings(shared)
    standings.refresh()
    assert sum(row["games"] for row in standings.as_dict()["opponents"]) == 0


def test_a_restarted_learner_keeps_the_league_table():
    shared = board()
    first = LeagueTable(shared)
    told = Results(shared.results[0])
    for step in (100, 150, 200):
        told.tell(1, 1.0, margin=0.0)
        told.tell(anchor(1), -1.0, margin=0.0)
        first.review(step, numbered(step))
    kept = shared.dump()
    second = LeagueTable(shared)
    assert not second.due(200)
    told.tell(2, 1.0, margin=0.0)
    second.review(210, numbered(0))
    assert shared.dump()["heard"].tolist() == [7, 0]
    copy = board()
    copy.restore(kept)
    third = LeagueTable(copy)
    Results(copy.results[0]).tell(2, 1.0, margin=0.0)
    third.review(210, numbered(0))
    for name, array in shared.dump().items():
        np.testing.assert_array_equal(array, copy.dump()[name], err_msg=name)
    with pytest.raises(
        SettingError, match="league must match the checkpoint: anchors, pool, actors or networks differ"
    ):
        board(League(pool=7)).restore(kept)


def test_opponents_are_drawn_as_likely_as_the_table_says():
    shared = board(League(snapshot_every=100, review_every=10, pool=3, anchor_share=0.4, self_share=0.5))
    table, draw = LeagueTable(shared), Draw(shared)
    for step in (100, 200):
        table.review(step, numbered(step))
    drawn = [draw.opponent((n + 0.5) / 1000) for n in range(1000)]
    assert {number: drawn.count(number) for number in sorted(set(drawn))} == {-2: 200, -1: 200, 0: 300, 1: 150, 2: 150}
    np.testing.assert_array_equal(draw.weights(2), numbered(200))


# Versus: the worlds as the actor sees them


class Echo:
    """A stand-in for the acting half of a policy that does what its only weight says."""

    def begin(self, seed):
        pass

    def load(self, weights, header):
        self._action = int(weights[0])

    def act(self, observations, masks=None, explore=True):
        assert not explore
        return np.full(len(observations), self._action), {}


def chances(kind, world, n):
    """Seeds for draws that are spread over all opponents, and for opponents, which need none here."""
    return int(((world * 7 + n * 3) % 20 + 0.5) / 20 * 2**32)


def versus(shared, batch, block=2, apart=True):
    publication = SimpleNamespace(version=1, refresh=lambda: True, weights=np.array([2.0]))
    return Versus(
        batch,
        Draw(shared),
        Results(shared.results[0]),
        [Scripted(functools.partial(ConstantPolicy, 3)), Scripted(functools.partial(ConstantPolicy, 4))],
        Newest(Echo(), publication, ()),
        lambda weights: Frozen(Echo(), weights, {}),
        chances,
        block,
        True,
        0.0,
        apart,
    )


TABLE = np.random.default_rng(0).normal(size=(2, 8, 8))  # pays according to who did what on which side


def one_by_one(worlds, turns=(5,)):
    games = [MatrixGame(TABLE, turns=turns[w % len(turns)]) for w in range(worlds)]
    return LoopedWorlds([as_world(game) for game in games], [False, False])


def test_the_player_sits_on_either_side_and_earns_what_that_side_earns():
    shared = board(League(snapshot_every=10, review_every=10, pool=4, anchor_share=0.4, self_share=0.3))
    table = LeagueTable(shared)
    for step in (10, 20):
        table.review(step, np.full(WIDTH, 4 + step // 10, np.float32))  # snapshots that do 5 and 6
    does = {anchor(0): 3, anchor(1): 4, NEWEST: 2, 1: 5, 2: 6}
    worlds, block = 6, 2
    batch = versus(shared, one_by_one(worlds, turns=(4, 5, 7)), block)  # so that sides get out of step
    draw = Draw(shared)
    rng = np.random.default_rng(1)
    begun, totals, pays, did = [0] * worlds, np.zeros(worlds), np.zeros(worlds), np.full(worlds, -1)
    results = []
    met, side = [0] * worlds, [0] * worlds
    for _ in range(120):
        over = list(batch.over)
        batch.reset(over, [0] * len(over))
        for w in over:
            if begun[w] % block == 0:
                met[w] = draw.opponent(chances(0, w, begun[w] // block) / 2**32)
            side[w], totals[w], pays[w], did[w] = begun[w] % 2, 0.0, 0.0, -1
            begun[w] += 1
            assert batch.lanes[w] == w + (0 if met[w] < 0 else worlds)
        (turn,) = batch.turns()
        assert turn.agent == 0
        assert turn.at.tolist() == list(range(worlds))
        np.testing.assert_allclose(turn.reward, pays)
        acted = did >= 0
        np.testing.assert_array_equal(turn.observation[acted, :8].argmax(1), did[acted])  # its own action first
        did = rng.integers(0, 8, worlds)
        endings = batch.act([did])
        for w in range(worlds):
            pair = (did[w], does[met[w]]) if side[w] == 0 else (does[met[w]], did[w])
            pays[w] = TABLE[(side[w], *pair)]
            totals[w] += TABLE[(side[w], *pair)] - TABLE[(1 - side[w], *pair)]
        ended = sorted(w for ending in endings for w in ending.at.tolist())
        assert ended == sorted(batch.over)
        for ending in endings:
            assert ending.agent == 0
            assert ending.truncated.all()
            np.testing.assert_allclose(ending.reward, pays[ending.at])
        results += [(met[w], 2 if totals[w] > 0 else 0) for w in ended]
    assert Results.hear(shared.results[0], 0)[0] == results
    assert set(met) | {number for number, _ in results} == set(does)


def test_arrays_of_worlds_are_played_as_worlds_one_by_one():
    def play(batch):
        rng = np.random.default_rng(0)
        seen = []
        for round_ in range(120):
            over = sorted(batch.over)
            batch.reset(over, [round_ * 10 + w for w in over])
            (turn,) = batch.turns()
            seen.append((turn.at.tolist(), turn.observation.tobytes(), turn.reward.astype("f4").tobytes()))
            endings = batch.act([rng.uniform(-1, 1, (4, 4)).astype(np.float32)])
            seen.append([(e.at.tolist(), e.reward.astype("f4").tobytes(), e.observation.tobytes()) for e in endings])
        return seen

    def batch(worlds):
        shared = board(League(anchor_share=1.0), ("weak", "strong"), weights=1)
        table = LeagueTable(shared)
        results.append(shared.results)
        keep.append(table)
        return Versus(
            worlds, Draw(shared), Results(shared.results[0]),
            [Scripted(make) for make in Hockey.scripted.values()], Newest(Echo(), None, ()), None,
            lambda kind, world, n: (3 * world + n) % 5 * 2**32 // 5, 1, False, 10.0, False,
        )  # fmt: skip

    results, keep = [], []
    make = functools.partial(Hockey, turns=30)
    together = play(batch(VectorWorlds(make().vector(4))))
    apart = play(batch(LoopedWorlds([as_world(make()) for _ in range(4)], [False, False])))
    assert together == apart
    assert results[0][0].tobytes() == results[1][0].tobytes()
    assert (results[0][0] > 0).sum() == 16


def test_half_played_games_are_taken_up_again_with_opponents_that_are_gone():
    shared = board(League(snapshot_every=10, review_every=10, pool=1, anchor_share=0.0, self_share=0.0))
    table = LeagueTable(shared)
    table.review(10, np.full(WIDTH, 6, np.float32))

    def play(batch, turns):
        rng = np.random.default_rng(3)
        seen = []
        for _ in range(turns):
            batch.reset(list(batch.over), [0] * len(batch.over))
            (turn,) = batch.turns()
            seen.append((turn.observation.tobytes(), turn.reward.tobytes()))
            seen.append(repr(batch.act([rng.integers(0, 8, 3)])))
        return seen

    batch = versus(shared, one_by_one(3), block=2)
    play(batch, 7)
    table.review(20, np.full(WIDTH, 7, np.float32))  # takes the place of the one being played
    state, told = batch.get_state(), shared.results.copy()
    after = play(batch, 30)
    shared.results[...] = told
    again = versus(shared, one_by_one(3), block=2)
    again.set_state(state)
    assert play(again, 30) == after


def test_the_newest_opponent_continues_with_its_version_until_the_next_game():
    """A version that came out since is for the next game, whoever plays on."""
    old = SimpleNamespace(version=1, refresh=lambda: True, weights=np.array([2.0]))
    playing = Newest(Echo(), old, ())
    playing.begin(0, 0)
    new = SimpleNamespace(version=2, refresh=lambda: True, weights=np.array([7.0]))
    again = Newest(Echo(), new, ())
    again.set_state(playing.get_state())
    assert again.act(np.arange(2), np.zeros((2, 1)), None).tolist() == [2, 2]
    again.begin(0, 0)
    assert again.act(np.arange(2), np.zeros((2, 1)), None).tolist() == [7, 7]


def test_anchors_are_found_by_name_and_by_path():
    play = SelfPlay.of(Hockey(), League(), lambda path: None)
    assert (play.anchors, play.by_total, play.margin) == (("weak", "strong"), False, 10.0)
    play = SelfPlay.of(
        Hockey(), League(anchors=("strong", "some:where"), won_by="total", margin=3.0), lambda path: (path,)
    )
    assert (play.anchors, play.by_total, play.margin) == (("strong", "some:where"), True, 3.0)
    assert play.makers[1].value == ("some:where",)
    with pytest.raises(
        SettingError,
        match="anchors must be one of weak, strong, a run directory, or 'module:attribute' of a policy factory, got "
        "'storng'",
    ):
        SelfPlay.of(Hockey(), League(anchors=("storng",)), lambda path: None)
    assert SelfPlay.of(MatrixGame(), League(), lambda path: None).partitions(once=False) == {"": 1.0}
    assert SelfPlay.of(Hockey(), League(), lambda path: None).partitions(once=True) == {"": 1.0}


def test_a_first_table_that_is_being_written_is_waited_for():
    shared = board()
    LeagueTable(shared)
    draw, met = Draw(shared), iter([False] * 3)
    refresh = draw._reader.refresh
    draw._reader.refresh = lambda: next(met, True) and refresh()
    assert draw.opponent(1.0) == NEWEST


# Whole runs


SMALL_TD3 = TD3Config(hidden=(16,), min_rows=64, batch_size=16, capacity=2000, n_step=2)
SMALL_PPO = PPOConfig(hidden=(16,), batch_size=3, length=16, minibatches=2, epochs=2, normalise=True)
SHORT = functools.partial(Hockey, turns=40)


@pytest.mark.parametrize(("world", "algorithm"), [(Coins, StandIn()), (SHORT, SMALL_TD3), (SHORT, SMALL_PPO)])
def test_lockstep_is_the_serial_run_league_included(world, algorithm, tmp_path):
    """Snapshots, win rates, chances and results too: they change between two rounds, at fixed steps."""
    pages = []
    for engine in ("serial", "processes"):
        told = []
        settings = quick(
            engine=engine, slack=0, actors=2, worlds_per_actor=3, publish_every=3, checkpoint_every=10**6,
            updates_per_step=None if algorithm is SMALL_PPO else 0.3,
        )  # fmt: skip
        result = train(world, algorithm, settings, run=tmp_path / engine, on_update=lambda s, told=told: told.append(s))
        from motet.runs.directory import RunDirectory

        kept = RunDirectory(tmp_path / engine).load()
        assert kept.league["counts"][:2].tolist() == [10, 30]
        assert kept.league["heard"].min() > 5
        parts = {**result.agents[PLAYER], **kept.league}
        pages.append({name: np.asarray(part).tobytes() for name, part in parts.items()})
    assert pages[0].keys() == pages[1].keys()
    assert [name for name in pages[0] if pages[0][name] != pages[1][name]] == []


@pytest.mark.parametrize("algorithm", [SMALL_TD3, SMALL_PPO])
def test_resumed_is_uninterrupted(algorithm, tmp_path):
    def settings(steps):
        return quick(
            engine="serial", steps=steps, checkpoint_every=600, keep_replay=True, worlds_per_actor=3,
            updates_per_step=None if algorithm is SMALL_PPO else 0.3,
        )  # fmt: skip

    whole = train(SHORT, algorithm, settings(1200), run=tmp_path / "whole")
    train(SHORT, algorithm, settings(600), run=tmp_path / "half")
    rest = resume(tmp_path / "half", steps=600, world=SHORT, algorithm={PLAYER: algorithm})
    assert whole.steps == rest.steps == 1200
    for part in ("state", "counters", "random", "reader"):
        np.testing.assert_array_equal(whole.agents[PLAYER][part], rest.agents[PLAYER][part], err_msg=part)


def test_batches_have_their_shares_of_games_against_anchors():
    """Rows of one partition lie in its lanes; the reader draws its share of every batch from them."""
    from motet.training.roster import make_roster
    from motet.training.serial import Serial
    from motet.training.shared import SharedMemory

    settings = quick(engine="serial", worlds_per_actor=2, actors=2, steps=4000)
    shared = SharedMemory(make_roster(Coins, StandIn(), settings))
    assert shared.replays[0].spec.lanes == {"anchor": 4, "pool": 4}
    serial = Serial(shared)
    serial.play(lambda: False)
    steps = [shared.replays[0].words(lane).steps for lane in range(8)]
    assert sum(steps) >= 4000
    assert all(count % 7 == 0 for count in steps)  # every episode lies whole in one lane
    assert 0.2 < sum(steps[:4]) / sum(steps) < 0.5  # a third of the games
    reader = shared.replays[0].reader(shares=shared.roster.policies[0].partitions, seed=1)
    lanes = np.concatenate([reader.sample(30).lane.copy() for _ in range(20)])
    assert (lanes < 4).sum() == 200


def test_a_killed_actor_and_a_killed_learner_are_restarted(no_leaks):
    killer = Killer(lambda row: row.name in ("actor-0", "learner-0"), signals=(signal.SIGKILL,), most=3)
    settings = quick(steps=25_000, slack=100, updates_per_step=0.2, actors=2, worlds_per_actor=2, limits=BRISK)
    result = train(Coins, StandIn(), settings, on_update=killer.watch, on_message=killer.said.append)
    assert result.state == "done"
    assert result.restarts == len(killer.sent) >= 1
    assert result.steps >= 25_000


def test_snapshots_are_ordinary_saved_policies(tmp_path):
    from motet.policies.entries import as_entry, load_policies

    world = functools.partial(Hockey, turns=40)
    run = tmp_path / "run"
    train(world, SMALL_TD3, quick(engine="serial", steps=900, worlds_per_actor=2), run=run)
    folders = sorted(folder.name for folder in (run / "league").iterdir())
    lines = [json.loads(line) for line in (run / "league.jsonl").read_text().splitlines()]
    names = [row["name"] for row in lines[-1]["opponents"]]
    assert names == ["weak", "strong", *names[2:]]
    assert sorted(f"step {int(folder)}" for folder in folders) == sorted(names[2:])
    assert len(folders) == 2
    spaces = {
        "observation_space": Hockey().observation_spaces["player_0"],
        "action_space": Hockey().action_spaces["player_0"],
    }
    for path in (run, run / "league" / folders[0]):
        policy = as_entry(str(path)).on("player_1").make(**spaces)
        policy.reset(0)
        assert policy.act(np.zeros(18, np.float32)).shape == (4,)
    both = load_policies(run, world=world)
    assert set(both) == {"player_0", "player_1"}


@pytest.mark.parametrize(
    ("world", "settings", "says"),
    [
        (
            functools.partial(Cleanup, agents=3),
            {},
            r"self_play is only valid with two players \(got the agents \['agent_0', 'agent_1', 'agent_2'\]\)",
        ),
        (
            functools.partial(MatrixGame, np.zeros((2, 2, 3))),
            {},
            r"self_play is only valid with equal action spaces \(got Discrete\(2\) and Discrete\(3\)\)",
        ),
        (
            Coins,
            {"algorithm": {"player_0": StandIn(), "player_1": StandIn()}},
            r"algorithm must be given for each of \['player'\], got \['player_0', 'player_1'\]",
        ),
    ],
)
def test_worlds_that_do_not_fit_are_refused(world, settings, says):
    with pytest.raises(SettingError, match=says):
        train(world, settings.get("algorithm", StandIn()), quick(engine="serial", steps=100))


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(SettingError, match=r"league is only valid with self_play=True \(got self_play=False\)"):
        Settings(league=QUICK)
    with pytest.raises(
        SettingError, match="until_return is not valid in self-play: its evaluations measure win rates, not returns"
    ):
        Settings(self_play=True, evaluate_every=100, until_return=1.0)
