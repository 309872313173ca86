"""act() against a world whose every number is known."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from pettingzoo.utils import OrderEnforcingWrapper

from motet.errors import WorldError
from motet.training.actor import ActingAgent, ActorState, act
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
    version, weights = 0, np.zeros(1, np.float32)

    def refresh(self):
        self.version += 1
        return True

    def take(self, timeout_s):
        return False

    def __getitem__(self, name):
        return 0.25


def seats(worlds):
    return [ActingAgent(Fixed(), Source(), Rows(worlds), header=("epsilon",)) for _ in range(2)]


def batch(worlds, remake=None):
    return LoopedWorlds(worlds, (False, False), remake)


def test_rewards_belong_to_the_action_before_them_and_ends_carry_what_was_seen_last():
    worlds, agents = [Script()], seats(1)
    actor_state = ActorState.fresh(1, agents)
    rounds = act(batch(worlds), agents, actor_state, lambda w, n: 100 * w + n)
    for _ in range(6):
        next(rounds)
    a, b = agents[0].writers[0], agents[1].writers[0]
    assert [row["reward"] for row in a] == [0.5, 10.5, 20.5]
    assert [row["reward"] for row in b] == [1.5, 11.5, 21.0]
    assert [row["observation"] for row in a] == [[0, 0], [1, 0], [2, 0]]
    assert [row["action"] for row in a] == [0, 1, 2]
    assert [row["p"] for row in b] == [1.5] * 3
    assert [row["version"] for row in a] == [1, 3, 5]
    assert (a[-1]["terminated"], a[-1]["truncated"]) == (True, False)
    assert (b[-1]["terminated"], b[-1]["truncated"]) == (False, True)
    assert a[-1]["final_observation"] == [3, 0]
    assert "final_observation" not in a[0]
    # The first turn of b came after it had earned 0.5 on a's turn: that belongs to no action, only to the return.
    assert [(e.agent, e.total, e.steps) for e in actor_state.finished] == [(0, 31.5, 3), (1, 34.5, 3)]
    assert actor_state.closed == [3, 3]


def test_episodes_follow_each_other_with_seeds_of_their_own():
    worlds, agents = [Script(), Script()], seats(2)
    rounds = act(batch(worlds), agents, ActorState.fresh(2, agents), lambda w, n: 100 * w + n)
    for _ in range(13):
        next(rounds)
    assert worlds[0].seeds == [0, 1, 2]
    assert worlds[1].seeds == [100, 101, 102]
    assert agents[0].behaviour.batch == (2, 2), "one question for both worlds"
    assert agents[0].behaviour.loaded[1] == {"epsilon": 0.25}


def test_a_world_that_raises_ends_it_or_is_made_anew():
    worlds, agents = [Script(raises_at=(1, 0)), Script()], seats(2)
    with pytest.raises(WorldError, match="boom"):
        for _ in act(batch(worlds), agents, ActorState.fresh(2, agents), lambda w, n: n):
            pass
    worlds, agents = [Script(raises_at=(1, 0)), Script()], seats(2)
    actor_state = ActorState.fresh(2, agents)
    rounds = act(batch(worlds, remake=Script), agents, actor_state, lambda w, n: n)
    for _ in range(10):
        next(rounds)
    assert actor_state.remade == 1
    assert "interrupted" in agents[0].writers[0]
    assert "interrupted" not in agents[0].writers[1]
    assert len(agents[0].writers[1]) >= 4


def test_a_sync_interval_looks_less_often():
    agents = seats(1)
    rounds = act(batch([Script()]), agents, ActorState.fresh(1, agents), lambda w, n: n, sync_interval=4)
    for _ in range(8):
        next(rounds)
    assert agents[0].subscriber.version == 2


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
    vector, agents = Duel(3), seats(3)
    actor_state = ActorState.fresh(3, agents)
    rounds = act(VectorWorlds(vector), agents, actor_state, lambda w, n: 100 * w + n)
    for _ in range(6):
        next(rounds)
    assert vector.seeds == [[0, 1, 2], [100, 101], [200, 201]]
    a, b = agents[0].writers, agents[1].writers
    assert [row["reward"] for row in a[0]] == [1, 2, 1, 2, 1, 2]
    assert [row["reward"] for row in b[1]] == [1.5, 2.5, 3.5, 1.5, 2.5, 3.5]
    assert [row["observation"] for row in b[2]] == [[0, 1], [1, 1], [2, 1], [3, 1], [0, 1]]
    ends = [[(row.get("terminated"), row.get("truncated")) for row in a[world]] for world in range(3)]
    assert ends[0] == [(None, None), (True, False)] * 3, "a termination is no truncation"
    assert ends[1] == [(None, None), (None, None), (False, True)] * 2
    assert b[1][2]["final_observation"] == [3, 1]
    assert sorted(e.total for e in actor_state.finished if e.agent == 0) == [3, 3, 3, 6, 6, 10]
    assert actor_state.closed == [17, 17], "of six rounds the third world's last reward is not known yet"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_no_number_is_refused_with_agent_and_world(bad):
    class Bad(Duel):
        def reward(self, agent):
            return np.where(np.arange(self.worlds) == agent, (1 - 2 * agent) * bad, 0.0)

    agents = seats(2)
    with pytest.raises(WorldError, match=rf"Bad \(agent a, world 0\): the reward is {bad}"):
        next(act(VectorWorlds(Bad(2)), agents, ActorState.fresh(2, agents), lambda w, n: 0))


def test_frames_are_stacked_by_world_and_repeat_the_first_one():
    vector, agents = Duel(2), seats(2)
    shown = []
    for seat in agents:
        seat.n_frames = 3
    answer = Fixed()
    agents[0].behaviour.act = lambda seen, masks: (
        shown.append(seen[:, :, 0].tolist()), answer.act(seen[:, -1], masks)
    )[1]  # fmt: skip
    agents[1].behaviour.act = lambda seen, masks: answer.act(seen[:, -1], masks)
    rounds = act(VectorWorlds(vector), agents, ActorState.fresh(2, agents), lambda w, n: 0)
    for _ in range(5):
        next(rounds)
    assert [rows[0] for rows in shown] == [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert [rows[1] for rows in shown] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]]


class Masked(Script):
    """Only the action that is the turn's number is allowed."""

    def mask(self, agent):
        return np.arange(5) == self.turn


def test_a_row_keeps_the_mask_under_which_its_action_was_chosen():
    agents = seats(1)
    for seat in agents:
        seat.masked = True
    rounds = act(LoopedWorlds([Masked()], (True, True)), agents, ActorState.fresh(1, agents), lambda w, n: n)
    for _ in range(6):
        next(rounds)
    for rows in (agents[0].writers[0], agents[1].writers[0]):
        assert [row["mask"].index(True) for row in rows] == [0, 1, 2]
        assert all(rows[-1]["final_mask"])


class Alternating(Script):
    """Begins with the agent that its seed names: two worlds are at different points of a turn."""

    def reset(self, seed=None):
        super().reset(seed)
        self.mover = seed


def test_worlds_at_different_points_keep_their_rows_apart():
    agents = seats(2)
    actor_state = ActorState.fresh(2, agents)
    rounds = act(batch([Alternating(turns=9), Alternating(turns=9)]), agents, actor_state, lambda w, n: w)
    for _ in range(9):
        next(rounds)
    assert [row["observation"] for row in agents[0].writers[0]] == [[t, 0] for t in range(4)]
    assert [row["observation"] for row in agents[0].writers[1]] == [[t, 0] for t in range(1, 4)]
    assert [row["observation"] for row in agents[1].writers[1]] == [[t, 1] for t in range(4)]
    state = actor_state.pending[0].get_state()
    assert state["steps"].tolist() == [5, 4]
    copy = ActorState.fresh(2, agents).pending[0]
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
        agents = [ActingAgent(Mixer(n, agent), Source(), Rows(3)) for agent in range(len(env.possible_agents))]
        actor_state = ActorState.fresh(3, agents)
        rounds = act(driven, agents, actor_state, lambda w, n: 100 * w + n)
        for _ in range(70):
            next(rounds)
        written.append(([seat.writers.lanes for seat in agents], list(actor_state.finished)))
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


def test_worlds_with_masks_and_worlds_to_be_remade_go_one_by_one():
    assert isinstance(make_world_batch(TreasureHunt, 2, [False, True]), LoopedWorlds)
    assert isinstance(make_world_batch(TreasureHunt, 2, [False, False], remake=True), LoopedWorlds)
