"""The actor against a world whose every number is known."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.utils import OrderEnforcingWrapper

from motet.errors import WorldError
from motet.policy import EpisodeState
from motet.replay import FrameStack
from motet.training.actor import Actor, PublishedPolicy
from motet.world import End, VectorWorld, World, as_world
from motet.world.batch import LoopedWorlds, VectorWorlds, make_world_batch
from motet.worlds import TreasureHunt
from motet.worlds.small_hunt import SmallHunt

VECTORS = [partial(TreasureHunt, agents=3, turns=7, spawn=0.1, size=9)]


class Script(World):
    """Two agents in turn. Observation: [turn, agent]; reward of a move: 10 * turn + agent, half of it a turn later."""

    agents = ("a", "b")
    observation_spaces = (gymnasium.spaces.Box(-1e9, 1e9, (2,)),) * 2
    action_spaces = (gymnasium.spaces.Discrete(5),) * 2

    def __init__(self, turns=3, raises_at=None):
        self.turns, self.raises_at, self.seeds = turns, raises_at, []

    def reset(self, seed=None):
        self.seeds.append(seed)
        self.turn, self.mover, self.earned, self.over, self.done = 0, 0, [0.0, 0.0], [], False

    def group(self):
        return [] if self.done else [self.mover]

    def observe(self, agent):
        return np.array([self.turn, agent], np.float32)

    def act(self, actions):
        assert len(actions) == 1
        if self.raises_at == (self.turn, self.mover):
            raise WorldError("boom")
        self.earned[self.mover] += 10 * self.turn + self.mover
        self.earned[1 - self.mover] += 0.5  # on the other's turn
        self.mover = 1 - self.mover
        self.turn += self.mover == 0
        if self.turn == self.turns:
            self.over, self.done = [End(0, True, False), End(1, False, True)], True

    def reward(self, agent):
        earned, self.earned[agent] = self.earned[agent], 0.0
        return earned

    def ended(self):
        over, self.over = self.over, []
        return over


class Rows:
    """What would go into lanes, one list each."""

    def __init__(self, lanes):
        self.lanes = [[] for _ in range(lanes)]

    def __getitem__(self, lane):
        return self.lanes[lane]

    def append(self, lanes, **named):
        for i, lane in enumerate(lanes):
            row = {name: values if isinstance(values, int) else values[i].tolist() for name, values in named.items()}
            self.lanes[lane].append(row)

    def interrupt(self, lane):
        self.lanes[lane].append("interrupted")


class Fixed:
    def begin(self, seed):
        pass

    def load(self, weights, header):
        self.loaded = weights, header

    def act(self, observations, masks=None, explore=True):
        self.batch = observations.shape
        return observations[:, 0].astype(np.int64) % 5, {"p": observations[:, 1] + 0.5}


class Source:
    version, forced, weights = 0, 0, np.zeros(1, np.float32)

    def refresh(self):
        self.version += 1
        return True

    def take(self, timeout_s):
        return False

    def __getitem__(self, name):
        return 0.25


def policies_in(worlds, **settings):
    """A policy for each of two agents."""
    return [PublishedPolicy(Fixed(), Source(), Rows(worlds), worlds, header=("epsilon",), **settings) for _ in range(2)]


def rows_of(policy):
    return policy._writers


def play(actor, rounds):
    for _ in range(rounds):
        actor.play_round()
    return actor


def batch(worlds, remake=None):
    return LoopedWorlds(worlds, (False, False), remake)


def test_rewards_belong_to_the_action_before_them_and_ends_carry_what_was_seen_last():
    policies = policies_in(1)
    actor = play(Actor(batch([Script()]), policies, lambda w, n: 100 * w + n), rounds=6)
    a, b = (rows_of(policy)[0] for policy in policies)
    assert [row["reward"] for row in a] == [0.5, 10.5, 20.5]
    assert [row["reward"] for row in b] == [1.5, 11.5, 21.0]
    assert [row["observation"] for row in a] == [[0, 0], [1, 0], [2, 0]]
    assert [row["action"] for row in a] == [0, 1, 2]
    assert [row["p"] for row in b] == [1.5] * 3
    assert [row["version"] for row in a] == [1, 2, 3], "new versions are looked for when the agent acts"
    assert (a[-1]["terminated"], a[-1]["truncated"]) == (True, False)
    assert (b[-1]["terminated"], b[-1]["truncated"]) == (False, True)
    assert a[-1]["final_observation"] == [3, 0]
    assert "final_observation" not in a[0]
    # The first turn of b came after it had earned 0.5 on a's turn: that belongs to no action, only to the return.
    assert [(e.policy, e.total, e.steps) for e in actor.finished] == [(0, 31.5, 3), (1, 34.5, 3)]
    assert [policy.closed for policy in policies] == [3, 3]


def test_episodes_follow_each_other_with_seeds_of_their_own():
    worlds, policies = [Script(), Script()], policies_in(2)
    play(Actor(batch(worlds), policies, lambda w, n: 100 * w + n), rounds=13)
    assert worlds[0].seeds == [0, 1, 2]
    assert worlds[1].seeds == [100, 101, 102]
    assert policies[0].behaviour.batch == (2, 2), "one question for both worlds"
    assert policies[0].behaviour.loaded[1] == {"epsilon": 0.25}


def test_a_world_that_raises_ends_the_actor_or_is_created_again():
    worlds = [Script(raises_at=(1, 0)), Script()]
    with pytest.raises(WorldError, match="boom"):
        play(Actor(batch(worlds), policies_in(2), lambda w, n: n), rounds=100)
    worlds, policies = [Script(raises_at=(1, 0)), Script()], policies_in(2)
    actor = play(Actor(batch(worlds, remake=Script), policies, lambda w, n: n), rounds=10)
    assert actor.remade == 1
    assert "interrupted" in rows_of(policies[0])[0]
    assert "interrupted" not in rows_of(policies[0])[1]
    assert len(rows_of(policies[0])[1]) >= 4


def test_a_sync_interval_looks_less_often():
    policies = policies_in(1, sync_interval=4)
    play(Actor(batch([Script()]), policies, lambda w, n: n), rounds=13)
    assert [policy.turns for policy in policies] == [7, 6]
    assert [policy.subscriber.version for policy in policies] == [2, 2], "each agent counts its own turns"


class Duel(VectorWorld):
    """Two agents at once. World w ends after w + 2 steps, the even ones by termination; numbers tell who is where."""

    agents = ("a", "b")
    observation_spaces = (gymnasium.spaces.Box(-1e9, 1e9, (2,)),) * 2
    action_spaces = (gymnasium.spaces.Discrete(5),) * 2

    def __init__(self, worlds):
        self.worlds, self.t = worlds, np.zeros(worlds, np.int64)
        self.seeds = [[] for _ in range(worlds)]

    def reset(self, worlds, seeds):
        for world, seed in zip(worlds, seeds, strict=True):
            self.t[world] = 0
            self.seeds[world].append(seed)

    def observe(self, agent):
        return np.stack([self.t, np.full(self.worlds, agent)], 1).astype(np.float32)

    def act(self, actions):
        assert [a.shape for a in actions] == [(self.worlds,)] * 2
        self.t += 1

    def reward(self, agent):
        return self.t + 0.5 * agent

    def ended(self):
        last, even = self.t == np.arange(self.worlds) + 2, np.arange(self.worlds) % 2 == 0
        return last & even, last


def test_worlds_stepped_as_arrays_end_and_begin_at_their_own_time():
    vector, policies = Duel(3), policies_in(3)
    actor = play(Actor(VectorWorlds(vector), policies, lambda w, n: 100 * w + n), rounds=6)
    assert vector.seeds == [[0, 1, 2], [100, 101], [200, 201]]
    a, b = map(rows_of, policies)
    assert [row["reward"] for row in a[0]] == [1, 2, 1, 2, 1, 2]
    assert [row["reward"] for row in b[1]] == [1.5, 2.5, 3.5, 1.5, 2.5, 3.5]
    assert [row["observation"] for row in b[2]] == [[0, 1], [1, 1], [2, 1], [3, 1], [0, 1]]
    ends = [[(row.get("terminated"), row.get("truncated")) for row in a[world]] for world in range(3)]
    assert ends[0] == [(None, None), (True, False)] * 3, "a termination is no truncation"
    assert ends[1] == [(None, None), (None, None), (False, True)] * 2
    assert b[1][2]["final_observation"] == [3, 1]
    assert sorted(e.total for e in actor.finished if e.policy == 0) == [3, 3, 3, 6, 6, 10]
    assert [policy.closed for policy in policies] == [17, 17], (
        "of six rounds the third world's last reward is not known yet"
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_no_number_is_refused_with_agent_and_world(bad):
    class Bad(Duel):
        def reward(self, agent):
            return np.where(np.arange(self.worlds) == agent, (1 - 2 * agent) * bad, 0.0)

    with pytest.raises(WorldError, match=rf"Bad \(agent a, world 0\): the reward is {bad}"):
        Actor(VectorWorlds(Bad(2)), policies_in(2), lambda w, n: 0).play_round()


def test_frames_are_stacked_by_world_and_repeat_the_first_one():
    policies, shown = policies_in(2, n_frames=3), []
    answer = Fixed()
    policies[0].behaviour.act = lambda seen, masks, explore: (
        shown.append(seen[:, :, 0].tolist()), answer.act(seen[:, -1], masks)
    )[1]  # fmt: skip
    policies[1].behaviour.act = lambda seen, masks, explore: answer.act(seen[:, -1], masks)
    play(Actor(VectorWorlds(Duel(2)), policies, lambda w, n: 0), rounds=5)
    assert [rows[0] for rows in shown] == [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert [rows[1] for rows in shown] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]]


def test_frames_of_an_episode_that_broke_off_are_forgotten():
    policies, shown = policies_in(1, n_frames=3), []
    answer = Fixed()
    for policy in policies:
        policy.behaviour.act = lambda seen, masks, explore: (
            shown.append(seen[0, :, 0].tolist()), answer.act(seen[:, -1], masks)
        )[1]  # fmt: skip
    play(Actor(batch([Script(raises_at=(1, 0))], remake=Script), policies, lambda w, n: n), rounds=5)
    assert shown == [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]], "the third one raised"


class Masked(Script):
    """Only the action that is the turn's number is allowed."""

    def mask(self, agent):
        return np.arange(5) == self.turn


def test_a_row_keeps_the_mask_under_which_its_action_was_chosen():
    policies = policies_in(1, masked=True)
    play(Actor(LoopedWorlds([Masked()], (True, True)), policies, lambda w, n: n), rounds=6)
    for rows in (rows_of(policies[0])[0], rows_of(policies[1])[0]):
        assert [row["mask"].index(True) for row in rows] == [0, 1, 2]
        assert all(rows[-1]["final_mask"])


class Alternating(Script):
    """Begins with the agent that its seed names: two worlds are at different points of a turn."""

    def reset(self, seed=None):
        super().reset(seed)
        self.mover = seed


def test_worlds_at_different_points_keep_their_rows_apart():
    policies = policies_in(2)
    play(Actor(batch([Alternating(turns=9), Alternating(turns=9)]), policies, lambda w, n: w), rounds=9)
    assert [row["observation"] for row in rows_of(policies[0])[0]] == [[t, 0] for t in range(4)]
    assert [row["observation"] for row in rows_of(policies[0])[1]] == [[t, 0] for t in range(1, 4)]
    assert [row["observation"] for row in rows_of(policies[1])[1]] == [[t, 1] for t in range(4)]
    state = policies[0].get_state()
    assert state["steps"].tolist() == [5, 4]
    copy = policies_in(2)[0]
    copy.set_state(state)
    assert copy.get_state()["row"]["observation"].tolist() == [[4, 0], [4, 0]]


class Mixer:
    """Acts by what it sees, differently in each round."""

    def __init__(self, actions, agent):
        self.actions, self.agent, self.round = actions, agent, 0

    def load(self, weights, header):
        pass

    def act(self, observations, masks=None, explore=True):
        self.round += 1
        sums = observations.reshape(len(observations), -1) @ np.arange(observations[0].size)
        return (sums.astype(np.int64) + self.agent + self.round * self.round // 3) % self.actions, {}


@pytest.mark.parametrize("make", VECTORS, ids=lambda make: make.func.__name__)
def test_worlds_stepped_together_write_the_rows_of_worlds_one_by_one(make):
    written = []
    for driven in (
        make_world_batch(make, 3, [False] * 3),
        LoopedWorlds([as_world(make()) for _ in range(3)], [False] * 3),
    ):
        env = make()
        n = env.action_space(env.possible_agents[0]).n
        policies = [PublishedPolicy(Mixer(n, agent), Source(), Rows(3), 3) for agent in range(len(env.possible_agents))]
        actor = play(Actor(driven, policies, lambda w, n: 100 * w + n), rounds=70)
        written.append(([rows_of(policy).lanes for policy in policies], list(actor.finished)))
    together, one_by_one = written
    assert isinstance(make_world_batch(make, 3, [False] * 3), VectorWorlds)
    assert len(together[1]) >= 6
    assert together == one_by_one


def test_a_vector_that_is_inherited_or_passed_on_by_a_wrapper_is_not_used():
    class Generous(TreasureHunt):
        def play(self, action):
            return super().play(action) + 1.0

    def wrapped():
        return OrderEnforcingWrapper(TreasureHunt())

    assert callable(wrapped().vector)
    for make in (Generous, SmallHunt, wrapped):
        assert isinstance(make_world_batch(make, 2, [False] * 2), LoopedWorlds)
    assert isinstance(make_world_batch(TreasureHunt, 2, [False] * 2), VectorWorlds)


def test_worlds_with_masks_and_worlds_to_be_remade_are_stepped_one_by_one():
    assert isinstance(make_world_batch(TreasureHunt, 2, [False, True]), LoopedWorlds)
    assert isinstance(make_world_batch(TreasureHunt, 2, [False, False], remake=True), LoopedWorlds)


def test_agents_that_do_not_act_are_not_touched():
    """A move costs what the agents that act cost: nobody asks for versions, rewards or rows of the others."""

    class Untouchable:
        is_done = False

        def begin(self, tracks):
            pass

    class Alone(Duel):
        """Only the first agent ever acts, and nobody else can earn."""

        def group(self):
            return (0,)

        def earners(self):
            return (0,)

        def act(self, actions):
            super().act([*actions, *actions])

        def reward(self, agent):
            assert agent == 0
            return super().reward(agent)

        def ended(self):
            return np.zeros(self.worlds, bool), np.zeros(self.worlds, bool)

    first, _ = policies_in(2)
    actor = play(Actor(VectorWorlds(Alone(2)), [first, Untouchable()], lambda w, n: 0), rounds=4)
    assert actor.acted == {0}
    assert first.turns == 4 and first.closed == 6


class Trio(World):
    """Three agents of two policies, all at once. An observation is [turn, agent]; a reward is 10 * turn + agent."""

    agents = ("a", "b", "c")
    observation_spaces = (gymnasium.spaces.Box(-1e9, 1e9, (2,)),) * 3
    action_spaces = (gymnasium.spaces.Discrete(5),) * 3

    def __init__(self, absent=None):
        self.absent, self.played = absent, []

    def reset(self, seed=None):
        self.turn, self.ends, self.length = 0, [], 3 + seed % 2

    def group(self):
        if self.turn == self.length:
            return []
        return [agent for agent in range(3) if (self.turn, agent) != self.absent]

    def observe(self, agent):
        return np.array([self.turn, agent], np.float32)

    def act(self, actions):
        self.played.append([int(action) for action in actions])
        self.turn += 1
        if self.turn == self.length:
            self.ends = [End(agent, agent != 1, agent == 1) for agent in range(3)]

    def reward(self, agent):
        return 10.0 * self.turn + agent

    def ended(self):
        ends, self.ends = self.ends, []
        return ends


class Labelled(Fixed):
    """Answers by who asks, and counts the questions."""

    def __init__(self):
        self.asked = []

    def act(self, observations, masks=None, explore=True):
        self.asked.append(observations.tolist())
        return (observations[:, 0] + observations[:, 1]).astype(np.int64) % 5, {}


@pytest.mark.parametrize("absent", [None, (1, 0), (1, 2)])
@pytest.mark.parametrize("frames", [1, 2])
def test_a_policy_of_several_agents_is_asked_once_and_keeps_their_rows_apart(absent, frames):
    """The same rows, actions and episodes as with a policy for each agent; lanes lie by world, then by agent."""

    def played(policies, policy_of=None):
        worlds = [Trio(absent), Trio(absent)]
        actor = play(Actor(batch3(worlds), policies, lambda w, n: w + n, policy_of), rounds=10)
        return actor, [world.played for world in worlds]

    def batch3(worlds):
        return LoopedWorlds(worlds, (False,) * 3)

    class Last(Labelled):
        def act(self, observations, masks=None, explore=True):
            return super().act(observations[:, -1] if frames > 1 else observations, masks)

    one_each = [PublishedPolicy(Last(), Source(), Rows(2), 2, n_frames=frames) for _ in range(3)]
    alone, expected = played(one_each)
    shared = PublishedPolicy(Last(), Source(), Rows(4), 4, n_frames=frames)
    other = PublishedPolicy(Last(), Source(), Rows(2), 2, n_frames=frames)
    together, actions = played([shared, other], policy_of=[0, 1, 0])
    assert actions == expected
    assert len(shared.behaviour.asked) == 10, "one question for two agents in two worlds"
    assert shared.behaviour.asked[0] == [[0, 0], [0, 2], [0, 0], [0, 2]]
    strip = lambda rows: [{**row, "version": 0} for row in rows]  # noqa: E731
    for world in range(2):
        for number, agent in ((0, 0), (1, 2)):
            mine = rows_of(shared)[2 * world + number]
            assert strip(mine) == strip(rows_of(one_each[agent])[world]) and len(mine) > 4
        assert rows_of(other)[world] == rows_of(one_each[1])[world]
    episodes = lambda actor, policies: sorted((e.total, e.steps) for e in actor.finished if e.policy in policies)  # noqa: E731
    assert episodes(together, {0}) == episodes(alone, {0, 2}) and episodes(together, {1}) == episodes(alone, {1})
    assert shared.closed == one_each[0].closed + one_each[2].closed
    copy = PublishedPolicy(Last(), Source(), Rows(4), 4, n_frames=frames)
    copy.set_state(shared.get_state())
    np.testing.assert_equal(copy.get_state(), shared.get_state())


def test_an_agent_may_act_by_a_given_policy_which_writes_no_rows():
    class Given:
        """Always the same action; it remembers what it was told."""

        is_done = False

        def __init__(self):
            self.begun, self.ended = 0, []

        def begin(self, tracks):
            self.begun += len(tracks)

        def act(self, turn, lanes):
            return np.full(len(turn.at), 4)

        def finish(self, ending, lanes):
            self.ended += ending.at.tolist()
            return []

    learner, scripted, worlds = policies_in(2)[0], Given(), [Trio(), Trio()]
    actor = Actor(LoopedWorlds(worlds, (False,) * 3), [learner, scripted], lambda w, n: w, policy_of=[0, 1, 1])
    play(actor, rounds=8)
    assert [row[1:] for row in worlds[0].played] == [[4, 4]] * 8
    assert [row[0] for row in worlds[0].played] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert scripted.begun == 2 * (3 + 2) and sorted(scripted.ended) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {episode.policy for episode in actor.finished} == {0}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n_frames=st.integers(1, 4), tracks=st.integers(1, 4))
def test_episode_state_equals_a_frame_stack_for_each_track(data, n_frames, tracks):
    state, stacks = EpisodeState(tracks, n_frames), {}
    for t in range(data.draw(st.integers(1, 12))):
        at = np.array(sorted(data.draw(st.sets(st.integers(0, tracks - 1), min_size=1))))
        for track in data.draw(st.sets(st.integers(0, tracks - 1))):
            state.begin(np.array([track]))
            stacks.pop(track, None)
        seen = {"x": np.stack([np.array([t, track], np.float32) for track in at]), "y": (at + 10 * t,)}
        shown = state.stacked(at, seen)
        if data.draw(st.booleans()):
            kept, state = state.get_state(), EpisodeState(tracks, n_frames)
            state.set_state(kept)
        for i, track in enumerate(at.tolist()):
            one = {"x": seen["x"][i], "y": (seen["y"][0][i],)}
            if track in stacks:
                expected = stacks[track].push(one)
            else:
                stacks[track] = FrameStack(n_frames)
                expected = stacks[track].begin(one)
            np.testing.assert_array_equal(shown["x"][i], expected["x"])
            np.testing.assert_array_equal(shown["y"][0][i], expected["y"][0])
