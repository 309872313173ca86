"""Global random streams: whose are installed, what a draw is attributed to, and what is noticed."""

import functools
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from support.drawing import Meadow, Moody, Noisy, Weather, draw
from support.stand_in import StandIn

import motet
from motet import streams as module
from motet.algorithm import make_behaviour
from motet.policies.teams import make_policy
from motet.policy import PolicySpec
from motet.runs.directory import RunDirectory
from motet.streams import EXCHANGE, Streams, StreamUser, generators_of, made_alike, streams_returned
from motet.testing import check_world
from motet.training.opponents import Scripted
from motet.training.run import train
from motet.training.settings import Settings
from motet.world import as_world, from_objects
from motet.world.batch import make_world_batch
from motet.world.film import Film


def alone(seed, draws):
    """What a program draws that is alone and seeds all generators."""
    with streams_returned():
        Streams(StreamUser("scratch")).begin(0)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        return [draw() for _ in range(draws)]


def test_users_draw_as_if_they_were_alone():
    users = [Streams(StreamUser(str(seed))) for seed in range(3)]
    drawn = [[], [], []]
    for seed, user in enumerate(users):
        user.begin(seed)
    for turn in np.random.default_rng(0).integers(3, size=60).tolist():
        users[turn].enter()
        drawn[turn] += [draw() for _ in range(turn + 1)]
    for seed in range(3):
        assert drawn[seed] == alone(seed, len(drawn[seed]))


@pytest.mark.parametrize("kept", [np.random.randn, lambda: random.gauss(0, 1)], ids=["numpy", "random"])
def test_the_second_normal_is_kept(kept):
    one, other = Streams(StreamUser("one")), Streams(StreamUser("other"))
    one.begin(5)
    expected = [kept() for _ in range(4)]
    one.begin(5)
    drawn = []
    for _ in range(4):
        one.enter()
        drawn.append(kept())
        other.enter()
        kept()
    assert drawn == expected


def test_results_do_not_depend_on_reading_the_memory_of_generators(monkeypatch):
    def played():
        users = [Streams(StreamUser(str(seed))) for seed in range(2)]
        for seed, user in enumerate(users):
            user.begin(seed)
        drawn = []
        for turn in (0, 1, 1, 0, 1, 0):
            users[turn].enter()
            drawn.append(draw())
        return drawn

    expected = played()
    monkeypatch.setattr(EXCHANGE.generators[0], "_memory", None)
    monkeypatch.setattr(module, "_IS_READABLE", False)
    monkeypatch.setattr(EXCHANGE.generators[1], "_bits", None)
    assert played() == expected


def test_a_user_may_install_another_bit_generator():
    one, other = Streams(StreamUser("one")), Streams(StreamUser("other"))
    one.begin(1)
    np.random.set_bit_generator(np.random.PCG64(3))
    np.random.randn()
    other.begin(2)
    second = np.random.rand()
    one.enter()
    drawn = [np.random.randn() for _ in range(3)]
    expected = np.random.RandomState(np.random.PCG64(3))
    assert drawn == expected.randn(4)[1:].tolist()
    other.begin(2)
    assert np.random.rand() == second
    assert isinstance(np.random.get_bit_generator(), np.random.MT19937)


def test_an_exception_in_a_users_code_changes_nothing():
    before = random.getstate()
    policy = make_policy(PolicySpec(Moody), {})
    policy.reset(1)
    with pytest.raises(TypeError):
        policy.act("nonsense")
    assert random.getstate() == before
    policy.reset(1)
    first = [policy.act(np.zeros(3)) for _ in range(5)]
    policy.reset(1)
    assert [policy.act(np.zeros(3)) for _ in range(5)] == first


def test_copies_are_made_alike():
    before = np.random.get_state(legacy=False)
    assert made_alike("a policy", Moody).weights.tolist() == made_alike("a policy", Moody).weights.tolist()
    after = np.random.get_state(legacy=False)
    assert repr(before) == repr(after)


def test_states_are_plain_and_continue():
    from motet.runs.plain import decode, encode

    one, other = Streams(StreamUser("one")), Streams(StreamUser("other"))
    one.begin(7)
    draw()
    installed = decode(encode(one.get_state()))
    other.begin(8)
    saved = decode(encode(one.get_state()))
    one.enter()
    expected = [draw() for _ in range(3)]
    for state in (installed, saved):
        other.set_state(state)
        other.enter()
        assert [draw() for _ in range(3)] == expected


# ---- worlds


def rewards(batch, world, seed):
    """The rewards of an episode in one world, while the others play too."""
    batch.reset(list(batch.over), [seed + 1000 * w for w in batch.over])
    found = []
    while True:
        turns = batch.turns()
        found.append([float(turn.reward[list(turn.at).index(world)]) for turn in turns if world in turn.at])
        ends = batch.act([np.zeros(len(turn.at), np.int64) for turn in turns])
        if batch.over:
            return found, [end.reward.tolist() for end in ends]


def test_worlds_that_drive_themselves_are_alone_too():
    make = lambda: from_objects(Meadow(), actions=2)  # noqa: E731
    single = make_world_batch(make, 1, [False])
    first = [rewards(single, 0, seed)[0] for seed in (1, 2, 3)]
    several = make_world_batch(make, 3, [False])
    assert [rewards(several, 0, seed)[0] for seed in (1, 2, 3)] == first
    assert first[0] != first[1]


def late_worlds(worlds):
    return make_world_batch(lambda: Weather(turns=3, first_draw=20), worlds, [False, False], watched=True)


def test_a_first_draw_after_many_episodes_is_noticed_at_the_end_of_that_episode(monkeypatch):
    monkeypatch.setattr(module, "_QUIET", 30)
    batch = late_worlds(2)
    for episode in range(1, 20):
        rewards(batch, 0, episode)
        assert batch.user.late == 0
    assert batch.user.gives_up_all
    rewards(batch, 0, 20)
    assert generators_of(batch.user.late) == ["random", "numpy.random", "torch"]
    assert batch.user.name == "the world Weather"
    single = make_world_batch(lambda: Weather(turns=3, first_draw=1), 1, [False, False])
    single._worlds[0]._env.climate = 0.0
    for episode in (21, 22):
        assert rewards(batch, 0, episode)[0] == rewards(single, 0, episode)[0]


class Finale(Weather):
    """Draws only in the last turn of an episode."""

    def _draw(self):
        return super()._draw() if self.turn == self.turns else 0.0


def test_a_draw_in_the_last_turn_is_noticed_before_the_next_episode(monkeypatch):
    monkeypatch.setattr(module, "_QUIET", 30)
    batch = make_world_batch(lambda: Finale(turns=3, first_draw=20), 2, [False, False], watched=True)
    for episode in range(1, 20):
        rewards(batch, 0, episode)
    assert batch.user.late == 0
    rewards(batch, 0, 20)
    assert batch.user.late == 7


def test_a_late_draw_does_not_change_the_streams_of_others(monkeypatch):
    monkeypatch.setattr(module, "_QUIET", 0)
    late = Streams(StreamUser("late", watched=True))
    for _ in range(3):
        late.begin(1)
    other = Streams(StreamUser("other"))
    other.begin(4)
    drawn = [draw(), draw()]
    late.enter()
    draw()
    other.enter()
    drawn += [draw(), draw()]
    assert drawn == alone(4, 4)
    assert late.user.late == 7


def test_a_behaviour_does_not_change_the_streams_of_worlds():
    def played(between):
        batch, found = make_world_batch(Weather, 1, [False, False]), []
        batch.reset([0], [3])
        while not batch.over:
            turns = batch.turns()
            between()
            found += [end.reward.tolist() for end in batch.act([np.zeros(1, np.int64) for _ in turns])]
        return found

    behaviour = make_behaviour(Noisy(), Box(-1, 1, (3,)), Discrete(3))
    behaviour.begin(1)
    behaviour.load(np.ones(16, np.float32), {"epsilon": 0.5})
    assert played(lambda: behaviour.act(np.zeros((1, 3)))) == played(lambda: None)


def test_a_lone_world_keeps_its_streams(monkeypatch):
    monkeypatch.setattr(module, "_QUIET", 3)
    batch = late_worlds(1)
    for episode in range(1, 20):
        rewards(batch, 0, episode)
    found = rewards(batch, 0, 20)[0]
    assert batch.user.late == 0
    single = make_world_batch(lambda: Weather(turns=3, first_draw=1), 1, [False, False])
    single._worlds[0]._env.climate = 0.0
    assert found == rewards(single, 0, 20)[0]


def test_worlds_that_do_not_draw_are_not_exchanged(monkeypatch):
    monkeypatch.setattr(module, "_QUIET", 30)
    batch = make_world_batch(lambda: Weather(turns=3, first_draw=10**9), 2, [False, False], watched=True)
    for episode in range(1, 20):
        rewards(batch, 0, episode)
    monkeypatch.setattr(EXCHANGE, "hand_over", lambda to: pytest.fail("exchanged"))
    batch._streams[1].enter()
    batch._streams[0].enter()


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_run_records_late_draws(engine, tmp_path):
    said = []
    settings = Settings(
        engine=engine, steps=800, worlds_per_actor=2, updates_per_step=0.05, slack=0 if engine == "processes" else None
    )
    world = functools.partial(Weather, first_draw=50)
    result = train(world, StandIn(), settings, run=tmp_path / "run", on_message=said.append)
    (line,) = [line for line in said if "drew from" in line]
    assert line.startswith("the world Weather drew from random and numpy.random and torch for the first time after")
    assert result.late_draws == "the world Weather drew from random and numpy.random and torch"
    assert RunDirectory(tmp_path / "run").config()["late_draws"] == 7
    assert result.late_draws in (tmp_path / "run" / "status.json").read_text()


def test_check_world_accepts_worlds_that_draw_from_global_generators():
    before = random.getstate()
    check_world(Weather)
    assert random.getstate() == before


class Drunkard:
    """An anchor that draws from the global generators."""

    def reset(self, seed):
        self.way = draw()

    def act(self, observation):
        return int(abs(self.way + draw()) * 1000) % 3


def test_anchors_of_a_league_do_not_disturb_each_other():
    def actions(worlds):
        anchor = Scripted(Drunkard)
        for world in worlds:
            anchor.begin(world, seed=world)
        played = [anchor.act(np.array(worlds), np.zeros((len(worlds), 3)), None) for _ in range(5)]
        return [turn[-1].item() for turn in played]

    assert actions([3]) == actions([0, 1, 2, 3])


def test_a_film_does_not_change_an_episode():
    class Stars(Weather):
        def render(self):
            return np.full((4, 4, 3), np.random.randint(255), np.uint8)

    world = as_world(Stars())
    Streams(StreamUser("the world")).begin(3)
    world.reset(3)
    film = Film()
    film.capture(world)
    world.act([0, 0])
    filmed = world.reward(0)
    Streams(StreamUser("the world")).begin(3)
    world.reset(3)
    world.act([0, 0])
    assert world.reward(0) == filmed
    assert film.pictures()


# ---- motet itself


def test_motet_never_draws_from_the_global_generators():
    """Else a draw could not be attributed to the user that was entered last.

    The modules for networks draw as any module of a user does: motet seeds torch for each of its
    passes (_module_network.py).
    """
    allowed = {"default_rng", "SeedSequence", "Generator", "PCG64", "MT19937"}
    drawing = re.compile(
        r"(?<![.\w])random\.[a-z]+\(|(?:np|numpy)\.random\.(\w+)|"
        r"(?:torch|nn)\.(?:rand|randn|randint|randperm|multinomial|bernoulli|normal|Linear|init\.)\w*\("
    )
    found = []
    for path in Path(motet.__file__).parent.rglob("*.py"):
        if path.name not in ("streams.py", "modules.py"):
            text = path.read_text()
            found += [f"{path}: {hit[0]}" for hit in drawing.finditer(text) if hit[1] not in allowed]
    assert found == []
