"""Many writers overtake the reader of a tiny replay, and processes are killed: no batch holds what never happened."""

from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
from support.killer import BRISK, Killer
from support.stand_in import StandIn

from motet.training.drivers import make_learner
from motet.training.roster import make_roster
from motet.training.run import train
from motet.training.settings import Settings
from motet.training.shared import SharedMemory


class Counting(gymnasium.Env):
    """Observations, actions and rewards by which a torn or mixed transition is recognised."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1e9, (3,)), gymnasium.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self._episode, self._t, self._last = (seed or 0) % 1000, 0, 0
        return self._seen(), {}

    def step(self, action):
        self._t, self._last = self._t + 1, int(action)
        return self._seen(), 100.0 * self._episode + self._t, False, self._t == 30, {}

    def _seen(self):
        return np.array([self._episode, self._t, self._last], np.float32)


@dataclass(frozen=True)
class Checking(StandIn):
    """Raises unless every transition of a batch is one that the world has made."""

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        learning = super().build(observation_space, action_space, agents, seeds)
        update = learning.update

        def checked(batch, steps):
            here, there = batch.observation, batch.next_observation
            assert (here[..., 0] == there[..., 0]).all(), "two episodes in one transition"
            assert (here[..., 1] + 1 == there[..., 1]).all() and (there[..., 2] == batch.action).all()
            assert (batch.reward == 100 * here[..., 0] + there[..., 1]).all()
            return update(batch, steps)

        learning.update = checked
        return learning


@dataclass(frozen=True)
class CheckingSequences(StandIn):
    """Raises unless every sequence of a batch is one that the world has made."""

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        learning = super().build(observation_space, action_space, agents, seeds)
        update = learning.update

        def checked(batch, steps):
            seen, valid = batch.observation, batch.valid
            here = seen[:, :, : valid.shape[2]]
            ends = np.arange(valid.shape[2]) + batch.ahead
            there = np.take_along_axis(seen, ends[..., None].astype(np.int64), 2)
            assert valid[..., self.burn_in :].any(2).all() and (valid == (batch.ahead > 0)).all()
            assert (here[..., 0] == there[..., 0])[valid].all(), "two episodes in one transition"
            assert (here[..., 1] + batch.ahead == there[..., 1])[valid].all()
            after = seen[:, :, 1 : valid.shape[2] + 1]
            assert (after[..., 2] == batch.action)[valid].all()
            assert (after[..., 1] == here[..., 1] + 1)[valid].all()
            fresh = ~valid[..., :-1]  # behind the end of an episode another one begins
            assert (here[..., 1:, 1] <= here[..., :-1, 1])[fresh].all()
            return update(batch, steps)

        learning.update = checked
        return learning


@pytest.mark.parametrize(
    "algorithm",
    [
        Checking(capacity=1, batch_size=16, prioritised=True),
        CheckingSequences(capacity=1, batch_size=16, prioritised=True, length=6, burn_in=2, n_step=2),
    ],
    ids=["transitions", "sequences"],
)
def test_eight_actors_with_a_tiny_replay_while_actors_and_learners_are_killed(algorithm, no_leaks):
    """The lanes hold so few rows that writers overtake the reader all the time."""
    killer = Killer(lambda row: row.name.startswith(("actor", "learner")[len(killer.sent) % 2]), most=4, pause_s=0.1)
    settings = Settings(
        steps=6_000, actors=8, updates_per_step=0.5, slack=200, limits=BRISK, checked=True, metrics_every_s=0.05
    )
    seen = []
    result = train(
        Counting,
        algorithm,
        settings,
        on_update=lambda snapshot: (seen.append(snapshot), killer.watch(snapshot)),
        on_message=killer.said.append,
    )
    assert result.state == "done" and result.steps >= 6_000, killer.said
    kinds = {name.partition("-")[0] for name, _ in killer.sent}
    assert result.restarts == len(killer.sent) == 4 and kinds == {"actor", "learner"}, killer.sent
    assert max(snapshot.agents[0].metrics.get("rows_overwritten_unread", 0) for snapshot in seen) > 100
    assert min(result.updates.values()) > 2_000, "some were waived, while there were too few transitions for a batch"
    for earlier, later in zip(killer.versions, killer.versions[1:], strict=False):
        assert earlier[0] <= later[0], "a version went back"


def test_a_learner_also_a_restarted_one_rests_while_there_are_fewer_transitions_than_a_batch():
    roster = make_roster(Counting, StandIn(prioritised=True, capacity=1, batch_size=8), Settings(engine="serial"))
    shared = SharedMemory(roster)
    learned, replay = shared.board.learned, shared.replays[0]

    def write(writer, rows):
        for t in range(rows):
            writer.append(observation=np.full(3, t, np.float32), action=1, reward=float(t))

    for _ in range(60):  # actors that die after their first row: no transition starts there
        write(replay.writer(0), 1)
    learner = make_learner(shared, 0)
    learner.begin()
    assert learner.progress.due() == [True]
    learner.catch_up()
    assert learned.updates[0] == 0 and learned.resting[0] == 1
    assert learner.progress.may_act(), "the actors bring more rows"
    learner.publish()
    learned.resting[0] = 0
    successor = make_learner(shared, 0)
    assert learned.resting[0] == 1
    write(replay.writer(0), 30)
    successor.catch_up()
    assert learned.resting[0] == 0 and learned.waived[0] > 40, "what was due in the meantime is not made up for"
    write(replay.writer(0), 10)
    successor.catch_up()
    assert learned.updates[0] == 10


def test_a_replay_has_room_for_a_batch_though_every_episode_is_one_step():
    roster = make_roster(Counting, StandIn(prioritised=True, capacity=1, batch_size=8), Settings(engine="serial"))
    shared = SharedMemory(roster)
    writer = shared.replays[0].writer(0)
    for _ in range(60):
        writer.append(np.zeros(3, np.float32), 1, 0.0)
        writer.append(np.zeros(3, np.float32), 1, 0.0, terminated=True, final_observation=np.ones(3, np.float32))
    assert make_learner(shared, 0).members[0].reader.ready() >= 8
