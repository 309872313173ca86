"""The roster: agents, the policies that they act by, and the lanes, stacks and processes of these."""

import pickle
from dataclasses import replace

import pytest
from support.stand_in import StandIn

from motet import Settings, train
from motet.algorithms import DQNConfig, PPOConfig
from motet.policy import PLAYER
from motet.training.roster import make_roster
from motet.training.shared import SharedMemory
from motet.worlds import Hockey, MatrixGame, TreasureHunt


def test_each_agent_has_a_policy_of_its_own_named_like_it():
    roster = make_roster(TreasureHunt, StandIn(), Settings())
    assert [agent.name for agent in roster.agents] == [policy.name for policy in roster.policies]
    assert [policy.agents for policy in roster.policies] == [(i,) for i in range(len(roster.agents))]
    assert [agent.policy for agent in roster.agents] == list(range(len(roster.agents)))


def test_player_of_self_play_lists_both_agents_and_has_one_lane_for_each_world_and_partition():
    roster = make_roster(Hockey, "td3", Settings(self_play=True, actors=2, worlds_per_actor=3))
    (player,) = roster.policies
    assert player.name == PLAYER and player.agents == (0, 1)
    assert [(agent.policy, agent.number) for agent in roster.agents] == [(0, 0), (0, 0)]
    assert list(player.partitions) == ["anchor", "pool"] and roster.lanes(0) == 12
    assert [roster.lanes_of(0, actor) for actor in range(2)] == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]


@pytest.mark.parametrize("lanes_per_world", [1, 2, 3])
def test_every_lane_has_one_writer_whatever_agents_share_a_policy(lanes_per_world):
    """Lanes lie by partition, then by actor, then by world, then by the agent's number in its policy."""
    made = make_roster(MatrixGame, StandIn(), Settings(actors=2, worlds_per_actor=2))
    shares = {"a": 0.5, "b": 0.5}
    first = replace(made.policies[0], lanes_per_world=lanes_per_world, partitions=shares)
    roster = replace(made, policies=(first, *made.policies[1:]))
    assert roster.lanes(0) == 8 * lanes_per_world and roster.lanes(1) == 4
    expected = [
        ((partition * 2 + actor) * 2 + world) * lanes_per_world + number
        for actor in range(2)
        for partition in range(2)
        for world in range(2)
        for number in range(lanes_per_world)
    ]
    assert roster.lanes_of(0, 0) + roster.lanes_of(0, 1) == expected
    assert sorted(expected) == list(range(roster.lanes(0)))
    assert dict(roster.replay_spec(0).lanes) == dict.fromkeys(shares, 4 * lanes_per_world)
    shared = SharedMemory(roster)
    assert [replay.spec.n_lanes for replay in shared.replays] == [roster.lanes(0), roster.lanes(1)]


def test_policies_are_stacked_where_all_that_decides_a_pass_is_equal():
    roster = make_roster(lambda: TreasureHunt(agents=4), StandIn(), Settings(learner_processes=1))
    assert roster.stacks == ((0, 1, 2, 3),)
    first = roster.policies[0]
    for change in (
        {"device": "cuda"},
        {"slots": 1},
        {"publish_every": 11},
        {"masked": True},
        {"lanes_per_world": 2},
        {"partitions": {"a": 1.0}},
        {"config": StandIn(capacity=77)},
    ):
        assert replace(first, **change).kind != first.kind, change
    assert replace(first, name="other", agents=(1,)).kind == first.kind


def test_policies_of_a_process_and_of_a_stack():
    algorithms = {"agent_0": DQNConfig(), "agent_1": PPOConfig(), "agent_2": DQNConfig(), "agent_3": PPOConfig()}
    settings = Settings(learner_processes=2, updates_per_step=1.0)
    roster = make_roster(lambda: TreasureHunt(agents=4), algorithms, settings)
    assert roster.processes == ((0, 1), (2, 3)) and roster.stacks == ((0,), (1,), (2,), (3,))
    assert [roster.policies_of(process) for process in range(2)] == [[0, 1], [2, 3]]
    assert [roster.stack_of(policy) for policy in range(4)] == [0, 1, 2, 3]
    together = make_roster(lambda: TreasureHunt(agents=4), algorithms, replace(settings, learner_processes=1))
    assert together.stacks == ((0, 2), (1,), (3,))  # rows that are read once set the pace: PPO is never stacked


def test_way_of_publishing_belongs_to_the_policy():
    roster = make_roster(MatrixGame, StandIn(), Settings(publish="snapshot", publish_every=3))
    assert [(policy.slots, policy.publish_every) for policy in roster.policies] == [(1, 3), (1, 3)]
    mixed = replace(roster, policies=(roster.policies[0], replace(roster.policies[1], slots=2)), stacks=((0,), (1,)))
    assert [publication.slots for publication in SharedMemory(mixed).publications] == [1, 2]


def test_roster_travels_to_other_processes():
    roster = make_roster(MatrixGame, StandIn(), Settings())
    again = pickle.loads(pickle.dumps(roster))  # noqa: S301 - its own bytes
    assert again.agents == roster.agents and again.policies == roster.policies


def test_checkpoints_and_metrics_go_by_the_name_of_the_policy(tmp_path):
    seen = []
    result = train(Hockey, "td3", Settings(steps=40, engine="serial", self_play=True), on_update=seen.append)
    assert list(result.agents) == list(result.updates) == [PLAYER]
