"""Many writers overtake the reader of a tiny replay, and processes are killed: no batch holds what never happened."""

from dataclasses import dataclass

import gymnasium
import numpy as np
from support.killer import BRISK, Killer
from support.stand_in import StandIn

from motet.training.run import train
from motet.training.settings import Settings


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


def test_eight_actors_with_a_tiny_replay_while_actors_and_learners_are_killed(no_leaks):
    """The lanes hold so few rows that writers overtake the reader all the time."""
    killer = Killer(lambda row: row.name.startswith(("actor", "learner")), most=6, pause_s=0.1)
    settings = Settings(
        steps=8_000, actors=8, updates_per_step=0.5, slack=200, limits=BRISK, checked=True, metrics_every_s=0.05
    )
    seen = []
    result = train(
        Counting,
        Checking(capacity=1, batch_size=16, prioritised=True),
        settings,
        on_update=lambda snapshot: (seen.append(snapshot), killer.watch(snapshot)),
        on_message=killer.said.append,
    )
    assert result.state == "done" and result.steps >= 8_000, killer.said
    kinds = {name.partition("-")[0] for name, _ in killer.sent}
    assert result.restarts == len(killer.sent) == 6 and kinds == {"actor", "learner"}, killer.sent
    assert seen[-1].agents[0].rows_overwritten_unread > 1_000
    assert min(result.updates.values()) >= 0.5 * 8_000 - 250
    for earlier, later in zip(killer.versions, killer.versions[1:], strict=False):
        assert earlier[0] <= later[0], "a version went back"
