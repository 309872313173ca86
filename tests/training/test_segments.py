"""Agents that come back after their end, act unequally, or are never asked."""

import functools
import hashlib

import gymnasium
import numpy as np
import pytest
from support.office import Office
from support.stand_in import StandIn

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.errors import SpecError, WorldError
from motet.evaluation.evaluate import evaluate
from motet.replay import Replay, ReplaySpec
from motet.schedule import Stages
from motet.testing import check_algorithm, check_world
from motet.training.actor import Actor, PublishedPolicy
from motet.training.evaluator import play_greedily
from motet.training.league import League
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.world import End, World
from motet.world.batch import LoopedWorlds

BOX = gymnasium.spaces.Box(-1e3, 1e3, (2,))


class Cat(World):
    """A cat and a mouse, in turns; the mouse moves twice. Caught after every third move, it comes back at once.

    An observation is [lives of the agent so far, moves in this one].
    """

    agents = ("cat", "mouse")
    observation_spaces = (BOX, BOX)
    action_spaces = (gymnasium.spaces.Discrete(2),) * 2

    def __init__(self, turns=5, moves=3, cheese=0.25):
        self.turns, self.moves, self.cheese = turns, moves, cheese

    def reset(self, seed=None):
        self.queue, self.turn, self.ends = [0, 1, 1], 0, []
        self.lives, self.moved, self.earned = [0, 0], [0, 0], [0.0, 0.0]

    def group(self):
        return self.queue[:1]

    def observe(self, agent):
        return np.array([self.lives[agent], self.moved[agent]], np.float32)

    def reward(self, agent):
        earned, self.earned[agent] = self.earned[agent], 0.0
        return earned

    def end(self, agent, terminated):
        self.ends.append(End(agent, terminated, not terminated, self.reward(agent), self.observe(agent)))
        self.lives[agent] += 1
        self.moved[agent] = 0

    def act(self, actions):
        agent = self.queue.pop(0)
        self.moved[agent] += 1
        self.earned[agent] += 1.0
        if agent == 1 and self.moved[1] == self.moves:
            self.earned[1] -= 5.0
            self.end(1, True)
            self.earned[1] += self.cheese  # for coming back: no move of its own
        if not self.queue:
            self.turn += 1
            self.queue = [0, 1, 1]
            if self.turn == self.turns:
                self.queue = []
                for mover in (0, 1):
                    if self.moved[mover]:
                        self.end(mover, False)

    def ended(self):
        ends, self.ends = self.ends, []
        return ends


class Nobody:
    """A policy source without versions."""

    version, weights = 0, np.zeros(1, np.float32)

    def refresh(self):
        return False

    def take(self, timeout_s):
        return False

    def __getitem__(self, name):
        return 0


class Still:
    """Does nothing, and remembers what it was shown."""

    def __init__(self):
        self.seen = []

    def begin(self, seed):
        pass

    def load(self, weights, header):
        pass

    def act(self, observations, masks=None, explore=True):
        self.seen.append(observations.copy())
        return np.zeros(len(observations), np.int64), {}


def play(worlds, rounds, frames=1):
    """Replays, episodes and behaviours of an actor after some rounds."""
    spec = ReplaySpec(BOX, gymnasium.spaces.Discrete(2), capacity=1000 * len(worlds), lanes=len(worlds))
    replays = [Replay(spec) for _ in worlds[0].agents]
    lanes = range(len(worlds))
    policies = [PublishedPolicy(Still(), Nobody(), r.writers(lanes), len(lanes), n_frames=frames) for r in replays]
    actor = Actor(LoopedWorlds(worlds, [False] * len(policies)), policies, lambda world, n: n)
    for _ in range(rounds):
        actor.play_round()
    return replays, actor.finished, [policy.behaviour for policy in policies]


def test_return_and_length_start_at_zero_after_an_end():
    _, finished, _ = play([Cat()], 15)
    mouse = [(episode.total, episode.steps) for episode in finished if episode.policy == 1]
    assert mouse == [(-2.0, 3), (-1.75, 3), (-1.75, 3), (1.25, 1)]
    assert [(e.total, e.steps) for e in finished if e.policy == 0] == [(5.0, 5)]


def test_return_and_length_start_at_zero_in_worlds_at_different_points():
    _, finished, _ = play([Cat(), Cat(moves=2, turns=4), Cat()], 15)
    mouse = [(episode.total, episode.steps) for episode in finished if episode.policy == 1]
    assert sorted(mouse) == sorted(
        [(-2.0, 3), (-1.75, 3), (-1.75, 3), (1.25, 1)] * 2 + [(-3.0, 2), (-2.75, 2), (-2.75, 2), (-2.75, 2), (-3.0, 2)]
    )


def test_an_end_closes_its_row_with_its_own_reward_and_observation():
    (_, mouse), _, _ = play([Cat()], 15)
    reader = mouse.reader(seed=1)
    rows = set()
    for _ in range(100):
        batch = reader.sample(8)
        for i in range(8):
            row = batch.observation[i], batch.reward[i], batch.discount[i], batch.next_observation[i]
            rows.add(tuple(float(x) for x in np.concatenate([np.atleast_1d(value) for value in row])))
    gamma = pytest.approx(0.99)
    expected = [(life, k, 1.0, gamma, life, k + 1) for life in range(3) for k in range(2)]
    expected += [(life, 2, -4.0, 0.0, life, 3) for life in range(3)] + [(3, 0, 1.0, gamma, 3, 1)]
    assert sorted(rows) == sorted(expected, key=lambda row: row[:3])


def test_steps_and_frames_never_cross_an_end():
    (_, mouse), _, behaviours = play([Cat(turns=40), Cat(turns=40, moves=4), Cat(turns=30)], 200, frames=3)
    for seen in behaviours[1].seen:  # [worlds, frames, 2]
        assert (seen[:, :, 0] == seen[:, -1:, 0]).all(), "the actor stacked frames of two lives"
    reader = mouse.reader(n_step=3, n_frames=3, gamma=0.5, seed=2)
    for _ in range(50):
        batch = reader.sample(64)
        life, moved = batch.observation[..., 0], batch.observation[..., 1]
        assert (life == life[:, -1:]).all(), "the reader stacked frames of two lives"
        assert (np.diff(moved, axis=1) >= 0).all() and (moved[:, 0] == np.maximum(moved[:, -1] - 2, 0)).all()
        assert (batch.next_observation[:, -1, 0] == life[:, -1])[batch.discount > 0].all()
        for i in range(64):  # rewards up to the end of this life, and not one more
            left = int(batch.next_observation[i, -1, 1] - moved[i, -1])
            ends = int(batch.discount[i] == 0)
            assert 1 <= left <= 3
            rewards = [1.0] * (left - ends) + [-4.0] * ends
            assert batch.reward[i] == pytest.approx(sum(0.5**k * r for k, r in enumerate(rewards)))


def test_rewards_between_an_end_and_the_next_episode_are_not_counted():
    class Late(Cat):
        def act(self, actions):
            super().act(actions)
            if self.lives[1]:
                self.queue = [agent for agent in self.queue if agent == 0] or ([0] if self.queue else [])
                self.earned[1] += 7.0

    _, finished, _ = play([Late(turns=4)], 40)
    mouse = {(episode.total, episode.steps) for episode in finished if episode.policy == 1}
    assert mouse == {(-2.0, 3)}


def fingerprint(result, agents=("clerk_0", "clerk_1")):
    digest = hashlib.sha256()
    for name in agents:
        for part in ("state", "counters", "random", "reader", "stage"):
            digest.update(name.encode() + part.encode() + result.agents[name][part].tobytes())
    return digest.hexdigest()


def run(world, algorithm, **settings):
    """A run that ends by its steps; one that waits for ever is stopped, and fails here."""
    result = train(world, algorithm, Settings(**{"steps": 400, "seconds": 200, "publish_every": 3, **settings}))
    assert result.state == "done"
    return result


SMALL = {"hidden": (16,), "min_rows": 64, "batch_size": 16, "capacity": 2000}
DQN = DQNConfig(**SMALL, learning_rate=1e-3)
ONCE = PPOConfig(hidden=(16,), batch_size=2, length=16, minibatches=2, epochs=2)
TWO, THREE = functools.partial(Office, 2), functools.partial(Office, 3)
EQUAL = {
    "dqn": DQN,
    "dqn, prioritised": DQNConfig(**SMALL, prioritised=True, n_step=3),
    "iqn": IQNConfig(**SMALL),
    "ppo": ONCE,
    "stand-in": StandIn(),
}


@pytest.mark.parametrize("name", EQUAL)
def test_an_agent_that_is_never_asked_changes_nothing_for_the_others(name):
    two, three = (run(world, EQUAL[name], engine="serial") for world in (TWO, THREE))
    assert min(two.updates.values()) > 10
    assert three.updates == {**two.updates, "clerk_2": 0} and three.steps == two.steps == 400
    assert fingerprint(three) == fingerprint(two)


def test_td3_beside_an_agent_that_is_never_asked():
    worlds = [functools.partial(Office, n, box=True) for n in (2, 3)]
    two, three = (run(world, TD3Config(**SMALL), engine="serial", steps=250) for world in worlds)
    assert three.updates == {**two.updates, "clerk_2": 0} and min(two.updates.values()) > 100
    assert fingerprint(three) == fingerprint(two)


@pytest.mark.parametrize(
    ("name", "order"), [("dqn", (0, 1)), ("dqn", (0, 1, 0, 1, 0, 1, 2)), ("stand-in", (0, 1, 1)), ("ppo", (0, 1, 1))]
)
def test_lockstep_is_the_serial_run_however_often_each_agent_is_asked(name, order):
    world = functools.partial(Office, 3, order, calls=23)
    layout = {"actors": 2, "worlds_per_actor": 2, "learner_processes": 1, "steps": 250}
    serial = run(world, EQUAL[name], engine="serial", **layout)
    ratio = {} if name == "ppo" else {"updates_per_step": 1.0}
    lockstep = run(world, EQUAL[name], engine="processes", slack=0, **layout, **ratio)
    assert serial.updates == lockstep.updates and serial.steps == lockstep.steps
    names = [f"clerk_{i}" for i in range(3)]
    assert fingerprint(serial, names) == fingerprint(lockstep, names)


@pytest.mark.parametrize(
    ("pace", "least"), [({}, 1), ({"updates_per_step": 1.0, "slack": 4.0}, 1000 - 66 - 4 - 2)], ids=["free", "slack"]
)
def test_no_process_waits_for_an_agent_that_is_never_asked(pace, least):
    result = run(THREE, DQN, engine="processes", steps=1000, learner_processes=1, **pace)
    assert result.steps >= 1000 and result.updates["clerk_2"] == 0
    assert min(result.updates["clerk_0"], result.updates["clerk_1"]) >= least


def test_no_process_waits_for_rows_of_an_agent_that_is_never_asked():
    result = run(THREE, ONCE, engine="processes", steps=1000)
    assert result.updates["clerk_2"] == 0 and result.updates["clerk_0"] == result.updates["clerk_1"] > 25


@pytest.mark.parametrize("at_once", [False, True])
def test_each_agent_is_updated_by_its_own_steps(at_once):
    order = (0, 1, 0, 1, 0, 1, 2)
    result = run(functools.partial(Office, 3, order, calls=35, at_once=at_once), StandIn(), engine="serial", steps=900)
    steps = {name: int(arrays["steps"]) for name, arrays in result.agents.items()}
    warm_up = 8 + 1 + 1
    assert all(0 <= steps[name] - warm_up - updates <= 2 for name, updates in result.updates.items()), result.updates
    assert result.updates["clerk_2"] > 200


class Shift(Office):
    """The first clerk works alone in the first episodes, the second one in all later ones."""

    episodes = 0

    def reset(self, seed=None):
        self.order = (0,) if self.episodes < 15 else (1,)
        self.episodes += 1
        super().reset(seed)


def test_an_agent_that_stops_delays_no_other_agent():
    versions = []
    settings = Settings(engine="serial", steps=700, publish_every=3, metrics_every_s=1e-9)
    watch = lambda snapshot: versions.append(snapshot.agents[1].version)  # noqa: E731
    result = train(functools.partial(Shift, 2), StandIn(), settings, on_update=watch)
    assert result.updates["clerk_0"] == 300 - 10
    assert 700 - 11 <= result.updates["clerk_1"] <= 700 - 10  # the last one may wait for a step of the other
    assert versions[-1] >= 290 // 3 + 689 // 3


def test_a_pass_leaves_agents_that_are_not_due_as_they_were():
    order = (0, 1) * 5 + (2,)  # rarely: it learns in few of the passes
    world = functools.partial(Office, 3, order, calls=22)
    algorithm, settings = IQNConfig(**SMALL, prioritised=True), {"steps": 500, "updates_per_step": 0.25}
    alone = run(world, algorithm, engine="processes", slack=0, learner_processes=3, **settings)
    stacked = run(world, algorithm, engine="serial", **settings)
    assert 0 < stacked.updates["clerk_2"] < 20
    assert stacked.updates["clerk_2"] == alone.updates["clerk_2"]
    for part in ("state", "counters", "random", "reader"):
        ours, theirs = (result.agents["clerk_2"][part] for result in (stacked, alone))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_world_whose_agents_come_back_passes_the_check():
    check_world(Cat)


class WithoutObservation(Cat):
    def ended(self):
        return [end._replace(observation=None) for end in super().ended()]


class WithoutBoth(Cat):
    def ended(self):
        return [end._replace(reward=None, observation=None) for end in super().ended()]


class WrongSize(Cat):
    def ended(self):
        return [end._replace(observation=np.zeros(3, np.float32)) for end in super().ended()]


class NotFinite(Cat):
    def ended(self):
        return [end._replace(reward=float("nan")) for end in super().ended()]


class EndsTwice(Cat):
    def ended(self):
        ends = super().ended()
        return ends + ends[:1]


class NeverEndsAgain(Cat):
    """The last life of the mouse has no end."""

    def end(self, agent, terminated):
        if terminated or agent == 0:
            super().end(agent, terminated)


class Shares(Cat):
    """An end shows the array that the mouse goes on with."""

    def reset(self, seed=None):
        super().reset(seed)
        self.shared = np.zeros(2, np.float32)

    def observe(self, agent):
        return self.shared.copy()

    def ended(self):
        return [end._replace(observation=self.shared) for end in super().ended()]


@pytest.mark.parametrize(
    ("world", "clause"),
    [
        (WithoutObservation, "'ended': the end of mouse in turn 5 has a reward and no observation"),
        (WithoutBoth, "'no agent acts after its end': mouse in turn"),
        (WrongSize, "'observation'"),
        (NotFinite, "'reward'"),
        (EndsTwice, "'ended': mouse in turn 5 ended for the second time"),
        (NeverEndsAgain, "'ended': group() is empty, but ended() never reported the end of \\['mouse'\\]"),
        (Shares, "'fresh observations'"),
    ],
)
def test_the_check_names_what_is_wrong_with_a_segment(world, clause):
    with pytest.raises(WorldError, match=clause.replace("(", "\\(").replace(")", "\\)")):
        check_world(world)


class Empty(Office):
    """In every other episode nobody comes to work."""

    def reset(self, seed=None):
        super().reset(seed)
        if self.rng.integers(2):
            self.count = self.calls


def test_episodes_in_which_no_agent_acts_are_skipped():
    check_world(functools.partial(Empty, 2), episodes=6)
    result = run(functools.partial(Empty, 2), StandIn(), engine="serial", worlds_per_actor=3, steps=300)
    assert result.steps >= 300
    evaluation = evaluate(functools.partial(Empty, 2), "random", episodes=6)
    assert {sum(episode.decisions) for episode in evaluation.episodes} == {0, 20}


def test_a_world_in_which_no_agent_ever_acts_is_an_error():
    with pytest.raises(WorldError, match="there was no agent to act"):
        run(functools.partial(Office, 2, calls=0), StandIn(), engine="serial")


class Diary:
    """A policy that counts its decisions since its reset and remembers the seed."""

    def reset(self, seed):
        self.seed, self.count = seed, 0

    def act(self, observation, mask=None):
        assert observation[1] == self.count, "it was not reset when its agent began a new life"
        self.count += 1
        return np.int64(0)


@pytest.mark.parametrize("settings", [{"isolate": True}, {"isolate": True, "jobs": 2}, {"pooled": False}, {}], ids=str)
def test_an_evaluation_sums_over_segments_and_resets_policies(settings):
    result = evaluate(Cat, "test_segments:Diary", episodes=3, **settings)
    for episode in result.episodes:
        assert not episode.failures
        assert episode.returns == (5.0, 10 * 1.0 - 3 * 5.0 + 3 * 0.25)
        assert episode.segments == (1, 4) and episode.decisions == (5, 10)


def test_an_evaluation_without_segments_does_not_speak_of_them():
    result = evaluate(functools.partial(Office, 2), "random", episodes=2)
    assert all(episode.segments == () for episode in result.episodes)
    assert b'"segments"' not in result.deterministic()


class Endless(Office):
    """Nobody ever goes home."""

    def __init__(self, calls=10**9):
        super().__init__(1, (0,), calls=calls)


@pytest.mark.parametrize(("calls", "count"), [(10**9, 1), (90, 0)])
def test_a_run_without_ends_of_episodes_warns_once(calls, count, monkeypatch):
    monkeypatch.setattr("motet.training.recorder._ENDLESS", 100)
    lines = []
    settings = Settings(engine="serial", steps=400, metrics_every_s=1e-9)
    train(functools.partial(Endless, calls), StandIn(), settings, on_message=lines.append)
    assert sum("no episode has ended in the last" in line for line in lines) == count, lines


@pytest.mark.parametrize("config", [DQN, IQNConfig(**SMALL), TD3Config(**SMALL, policy_delay=3), ONCE])
def test_shipped_algorithms_count_the_updates_of_each_agent(config):
    actions = gymnasium.spaces.Box(-1, 1, (1,)) if isinstance(config, TD3Config) else gymnasium.spaces.Discrete(3)
    check_algorithm(config, gymnasium.spaces.Box(0, 1, (3,)), actions)


class Alike(TD3Config):
    """The first agent's count decides for all."""

    def build(self, *args, **options):
        algorithm = super().build(*args, **options)
        update = algorithm.update

        def by_the_first(batch, steps):
            own = algorithm.counters.copy()
            algorithm.counters[:] = own[0]
            result = update(batch, steps)
            algorithm.counters[:] = own + 1
            return result

        algorithm.update = by_the_first
        return algorithm


def test_the_check_finds_an_algorithm_that_counts_for_all_agents_alike():
    spaces = gymnasium.spaces.Box(0, 1, (3,)), gymnasium.spaces.Box(-1, 1, (1,))
    with pytest.raises(SpecError, match="learned more often than the others"):
        check_algorithm(Alike(**SMALL, policy_delay=3), *spaces)


def test_an_agent_that_is_never_asked_holds_up_no_stage():
    stages = Stages({"first": 100, "second": 150, "third": None}, clear_replay_on_stage=("second", "third"))
    config = DQNConfig(**SMALL, stages=stages)
    two, three = (run(world, config, engine="serial", steps=500) for world in (TWO, THREE))
    assert two.agents["clerk_0"]["stage"][0] == 2 and three.agents["clerk_2"]["stage"][0] == 0
    assert three.updates == {**two.updates, "clerk_2": 0} and min(two.updates.values()) > 100
    assert fingerprint(three) == fingerprint(two)


@pytest.mark.parametrize("keep_replay", [False, True])
def test_an_agent_that_is_never_asked_holds_up_no_checkpoint_and_no_resumed_run(keep_replay, tmp_path):
    settings = Settings(engine="serial", checkpoint_every=100, steps=400, keep_replay=keep_replay)
    result = train(THREE, StandIn(), settings, run=tmp_path / "run")
    assert result.state == "done" and len(list((tmp_path / "run" / "checkpoints").iterdir())) >= 2
    more = resume(tmp_path / "run", steps=600, world=THREE, algorithm=StandIn())
    assert more.state == "done" and more.steps >= 600 and more.updates["clerk_2"] == 0
    assert more.updates["clerk_0"] >= result.updates["clerk_0"] + 180


def test_evaluations_in_training_reset_frames_in_each_segment():
    still = [Still(), Still()]
    totals = play_greedily(LoopedWorlds([Cat(), Cat(moves=2)], [False] * 2), still, [1, 2], [3, 3])
    assert totals.tolist() == [[5.0, -4.25], [5.0, 10 - 25 + 4 * 0.25]]  # what comes after the last end is no move's
    for seen in still[1].seen:
        assert (seen[:, :, 0] == seen[:, -1:, 0]).all()


def test_scripted_opponents_are_reset_in_each_segment():
    settings = Settings(engine="serial", steps=200, self_play=True, league=League(anchors=("test_segments:Diary",)))
    assert train(Cat, StandIn(), settings).state == "done"
