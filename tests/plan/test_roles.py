"""Roles as arguments: subsets of the agents, and agents in neither role that act by a fixed policy."""

from itertools import product

import numpy as np
import pytest
from gymnasium import spaces
from support.bush_corridor import BushCorridor
from support.small_models import Among, Layered, Line

from motet.errors import ModelError, SettingError
from motet.plan import Humans, Robot, Solution, enumerate_states, solve


class Fixed:
    """The same model for some of the agents: the others are part of the world, and act by their policies."""

    def __init__(self, model, left, policies, humans, robots):
        self.model, self.left, self.policies = model, left, policies  # policies: agent -> (state -> probabilities)
        self.agents = [model.agents[agent] for agent in left]
        self.action_space = [model.action_space[agent] for agent in left]
        self.human_agent_indices = [left.index(agent) for agent in humans]
        self.robot_agent_indices = [left.index(agent) for agent in robots]
        self.reset, self.get_state, self.set_state = model.reset, model.get_state, model.set_state

    def transition_probabilities(self, state, actions):
        joint = dict(zip(self.left, actions, strict=True))
        outcomes = []
        for profile in product(*(range(len(policy(state))) for policy in self.policies.values())):
            fixed = dict(zip(self.policies, profile, strict=True))
            share = np.prod([self.policies[agent](state)[action] for agent, action in fixed.items()])
            whole = [(joint | fixed)[agent] for agent in range(len(self.model.agents))]
            found = self.model.transition_probabilities(state, whole)
            if found is None:
                return None
            outcomes += [(float(share * p), successor) for p, successor in found]
        return outcomes


def compare(found, exact, agents):
    """The solution for some of the agents, state by state; the numbers of the states may differ."""
    assert set(found.graph.states) == set(exact.graph.states)
    for state in exact.graph.states:
        a, b = found.graph.number(state), exact.graph.number(state)
        for name in ("human_value", "attainment", "power", "utility", "robot_value", "robot_policy"):
            np.testing.assert_allclose(found.arrays[name][a], exact.arrays[name][b], rtol=1e-12, atol=1e-13)
        if not exact.graph.terminal[b]:
            for agent in agents:
                np.testing.assert_allclose(found.policy(state, agent), exact.policy(state, agent), rtol=1e-12)


CASES = [((0,), (1,)), ((0,), (2,)), ((1,), (0, 3)), ((1, 2), (0,)), ((0, 3), ()), ((0, 2), (1, 3))]


@pytest.mark.parametrize(("humans", "robots"), CASES)
@pytest.mark.parametrize("given", [False, True])
def test_other_agents_are_part_of_the_world(humans, robots, given):
    """With action 0, or a policy that depends on the state, the result is that of a model without these agents."""
    model = Layered(3, (2, 3), (3, 2), depth=3, width=3)
    left = sorted((*humans, *robots))
    certain = {agent: lambda state, n=model.counts[agent]: np.eye(n)[0] for agent in range(4) if agent not in left}
    policies = dict(certain)
    if given:
        for agent in certain:
            policies[agent] = lambda state, n=model.counts[agent]: np.random.default_rng(state).dirichlet(np.ones(n))
    names = [model.agents[agent] for agent in left]
    exact = solve(
        enumerate_states(Fixed(model, left, policies, humans, robots)), model.goals, Humans(gamma=0.9), Robot(rho=0.1)
    )
    found = solve(
        enumerate_states(model),
        model.goals,
        Humans(gamma=0.9),
        Robot(rho=0.1),
        human_agents=humans,
        robot_agents=robots,
        others=policies if given else None,
    )
    assert (found.graph.humans, found.graph.robots) == (humans, robots)
    compare(found, exact, names)
    found.graph.check("here")


def test_policies_of_others_may_be_tables_and_names():
    model = Layered(3, (2, 3), (3, 2))
    graph = enumerate_states(model)
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(3), len(graph))
    roles = {"human_agents": ["agent_1"], "robot_agents": ["agent_3"]}
    by_table = solve(graph, model.goals, others={"agent_2": table}, **roles)
    by_function = solve(graph, model.goals, others={2: lambda state: table[graph.number(state)]}, **roles)
    for name, array in by_table.arrays.items():
        np.testing.assert_array_equal(array, by_function.arrays[name])


def test_durations_are_kept_apart_when_distributions_are_mixed():
    model = Layered(6, (2,), (2, 2), durations=True)
    left, policies = [0, 1], {2: lambda state: np.array([0.3, 0.7])}
    fixed = Fixed(model, left, policies, (0,), (1,))
    fixed.transition_durations = lambda state, actions, transitions: [
        t for last in (0, 1) for t in model.times[state, (*actions, last)]
    ]
    settings = {"humans": Humans(rho=0.3), "robot": Robot(rho=0.2)}
    exact = solve(enumerate_states(fixed), model.goals, **settings)
    roles = {"human_agents": [0], "robot_agents": [1], "others": policies}
    found = solve(enumerate_states(model), model.goals, **settings, **roles)
    compare(found, exact, ["agent_0", "agent_1"])


def test_states_that_only_others_lead_to_are_left_out():
    """Where nobody comes, a human without a goal in reach is no error."""

    class Trap(Line):
        agents = ("human", "robot", "visitor")
        human_agent_indices, robot_agent_indices = (0,), (1,)

        def transition_probabilities(self, state, actions):
            if state in (-2, 3):
                return None
            if actions[2] == 1 or state == -1:
                return [(1.0, -2 if state == -1 else -1)]
            return [(1.0, state + 1)]

    graph = enumerate_states(Trap())
    goal = Among("on", frozenset([1, 2, 3]))
    found = solve(graph, [goal], Humans(achieved="stay"))
    assert list(found.graph.states) == [0, 1, 2, 3]
    assert found.attainment(0, "human", "on") == 1.0
    with pytest.raises(ModelError, match="X_h of human is 0"):
        solve(graph, [goal], Humans(achieved="stay"), others={"visitor": lambda state: [0.5, 0.5]})


def test_model_that_leaves_its_roles_open_is_enumerated(tmp_path):
    model = BushCorridor(2)
    graph = enumerate_states(model)
    assert (graph.humans, graph.robots) == ((), ())
    roles = {"human_agents": [2], "robot_agents": [0]}
    found = solve(graph, {2: model.cell_goals(2)}, Humans(achieved="stay"), **roles)
    assert len(found.graph) < len(graph)
    found.save(tmp_path / "plan")
    loaded = Solution.load(tmp_path / "plan")
    assert (loaded.graph.humans, loaded.graph.robots) == ((2,), (0,))
    np.testing.assert_array_equal(loaded.policy(model.start, 0), found.policy(model.start, 0))
    with pytest.raises(SettingError, match="agent_1 must be a human or a robot of this solution, got neither"):
        loaded.policy(model.start, 1)


def test_role_property_that_fails_is_named():
    class Broken(BushCorridor):
        human_agent_indices = property(lambda self: 1 / 0)

    with pytest.raises(ModelError, match="human_agent_indices raised ZeroDivisionError"):
        enumerate_states(Broken(1))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]),
        spaces.MultiDiscrete([2, 3]),
        spaces.Dict({"agent_0": spaces.Discrete(2), "agent_1": spaces.Discrete(3)}),
    ],
)
def test_action_counts_may_differ_by_agent(space):
    model = Layered(1, (2,), (3,))
    model.action_space = space
    assert enumerate_states(model).actions == (2, 3)


def test_action_counts_may_be_given_beside_one_space_for_all():
    model = Layered(1, (2,), (3,))
    model.action_space, model.n_actions_per_agent = spaces.Discrete(3), [2, 3]
    graph = enumerate_states(model)
    assert graph.actions == (2, 3)
    exact = Layered(1, (2,), (3,))
    compare(solve(graph, model.goals), solve(enumerate_states(exact), exact.goals), ["agent_0", "agent_1"])
    model.n_actions_per_agent = [2]
    with pytest.raises(
        ModelError, match=r"n_actions_per_agent must be one count >= 1 for each of 2 agents, got \(2,\)"
    ):
        enumerate_states(model)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"human_agents": [0, 0]}, r"human_agents must name each agent at most once, got \[0, 0\]"),
        (
            {"human_agents": [0], "robot_agents": [0]},
            "human_agents and robot_agents must not have an agent in common, got agent_0 in both",
        ),
        ({"human_agents": [7]}, "agent must be one of agent_0, agent_1, agent_2 or its index, got 7"),
        (
            {"others": {0: None}},
            "others must be policies of agents that are neither human nor robot, got one of agent_0",
        ),
        ({"human_agents": [1], "others": {0: np.ones((3, 2))}}, r"others: the table of agent_0 must have the shape"),
    ],
)
def test_bad_roles_are_refused(given, says):
    model = Layered(1)
    with pytest.raises(SettingError, match=says):
        solve(enumerate_states(model), model.goals, **given)


def test_policy_of_another_agent_that_fails_is_named_with_the_state():
    model = Layered(1)
    with pytest.raises(ModelError, match=r"others: the table of agent_0: the policy raised.*\(state \(0, 0\)\)"):
        solve(enumerate_states(model), model.goals, human_agents=[1], others={0: lambda state: [0.5, 0.4]})
