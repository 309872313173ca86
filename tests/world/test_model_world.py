"""Models as worlds: they play by the model's probabilities, and plans reach in them what they promise."""

import functools

import numpy as np
import pytest
from support.foreign_models import GatedPath
from support.small_models import Layered

import motet
from motet import cli
from motet.errors import ModelError, SettingError, WorldError
from motet.plan import Humans, PlannedPolicy, best_response, enumerate_states, solve
from motet.policy import PolicySpec
from motet.testing import check_model, check_world
from motet.world import ModelWorld, as_world
from motet.worlds import Bushes, Rooms, SmallHunt


def played(world, seed, act):
    """One episode as [(group, observations, actions, rewards)], and the ends."""
    world.reset(seed)
    trace, ends = [], []
    while group := list(world.group()):
        seen = [world.observe(agent) for agent in group]
        actions = [act(world, agent, one) for agent, one in zip(group, seen, strict=True)]
        world.act(actions)
        ends += world.ended()
        trace.append((group, seen, actions, [world.reward(agent) for agent in range(len(world.agents))]))
    return trace, ends


def returns(world, episodes, policies):
    """Returns of the agents, [episodes, agents]; policies are called with the world and the observation."""
    found = []
    for seed in range(episodes):
        for number, policy in enumerate(policies):
            policy.reset(1000 * seed + number)
        trace, _ = played(world, seed, lambda world, agent, seen: policies[agent].act(seen))
        found.append(np.sum([rewards for *_, rewards in trace], axis=0))
    return np.array(found)


def assert_mean(samples, expected):
    """The mean is within three standard errors; seeds are fixed, so this does not fail by chance."""
    assert abs(np.mean(samples) - expected) <= 3 * np.std(samples) / len(samples) ** 0.5 + 1e-12


def test_world_of_rooms_plays_the_episodes_of_rooms():
    rng = np.random.default_rng(1)
    moves = rng.integers(4, size=(50, 3)).tolist()
    make = functools.partial(Rooms, "passage", horizon=6)

    for seed in range(20):
        traces = []
        for world in (ModelWorld(make()), as_world(make())):
            log = []
            world.reset(seed)
            while group := list(world.group()):
                world.act([moves[len(log)][agent] for agent in group])
                log.append([(world.reward(a), world.observe(a).tobytes()) for a in range(3)])
            traces.append(log)
        assert traces[0] == traces[1]
        assert len(traces[0]) == 6


def test_models_are_recognised_as_worlds():
    assert isinstance(as_world(Bushes()), ModelWorld)
    assert not isinstance(as_world(Rooms()), ModelWorld)  # it is also an environment
    assert ModelWorld(Bushes).model.horizon == 12  # a factory
    with pytest.raises(SettingError, match="model must have get_state, set_state and transition_probabilities"):
        ModelWorld(object())


@pytest.mark.parametrize(
    "make", [Bushes, functools.partial(Bushes, "R.H\n.2R", horizon=3), Rooms, SmallHunt, GatedPath]
)
def test_model_and_its_world_fulfil_the_contract(make):
    check_model(make, states=20, episodes=1)


def test_plain_states_are_observed_as_their_numbers():
    world = ModelWorld(GatedPath())
    world.reset(seed=0)
    state = world.state
    assert world.agents[0] == "agent_0"  # the model's agents are objects
    robot = world.observe(0)
    assert robot.tolist() == [state[0], *map(float, state[1]), float(state[2])]
    assert robot.dtype == np.float32
    assert world.state_of(robot, "agent_0") == state
    assert [type(part) for part in world.state_of(robot, "agent_0")] == [int, tuple, bool]


def test_numbers_that_would_be_rounded_are_refused():
    class Large(Layered):
        def reset(self):
            self.state = (0, 2**24 + 1)

        def transition_probabilities(self, state, actions):
            return None if state[0] else [(1.0, (1, 0))]

    world = ModelWorld(Large(), goals=Layered().goals)
    world.reset(seed=0)
    with pytest.raises(ModelError, match="cannot represent exactly: give the model encode"):
        world.observe(0)


def test_states_of_changing_form_need_encode():
    class Growing(Layered):
        def transition_probabilities(self, state, actions):
            return None if len(state) > 3 else [(1.0, (*state, 1))]

    world = ModelWorld(Growing(), goals=Layered().goals)
    world.reset(seed=0)
    world.act([0, 0, 0])
    with pytest.raises(ModelError, match=r"same length as in the first state, \(0, 0\): give the model encode"):
        world.observe(0)


def test_human_observes_the_goal_that_was_drawn():
    world = ModelWorld(Bushes(horizon=3))
    drawn = set()
    for seed in range(30):
        world.reset(seed)
        seen = world.observe(1)
        assert sorted(seen) == ["goal", "state"]
        assert world.goal_of(seen, "human_0").name == world.goals[1]
        assert seen["goal"].argmax() == int(world.goals[1][2:])
        assert world.state_of(seen, "human_0") == world.state
        drawn.add(world.goals[1])
    assert len(drawn) == 7
    assert world.goal_of(world.observe(0), "robot_0") is None
    assert world.observe(0).shape == (29,)  # the robot does not see the humans' goals


def test_goals_without_a_code_are_one_hot():
    model = Layered()
    world = ModelWorld(model, goals=model.goals)
    world.reset(seed=3)
    seen = world.observe(0)
    assert seen["goal"].sum() == 1
    assert world.goal_of(seen, "agent_0") == model.goals[int(seen["goal"].argmax())][0]


def test_goals_are_drawn_by_weight():
    model = Bushes(horizon=1)
    first, second = (goal for goal, _ in model.goals(1)[:2])
    world = ModelWorld(model, goals={1: [(first, 3.0), (second, 1.0)]})
    count = 0
    for seed in range(400):
        world.reset(seed)
        count += world.goals == {1: first.name}
    assert_mean([1] * count + [0] * (400 - count), 0.75)


def test_reaching_the_goal_is_rewarded_once():
    model = Bushes("H..\nR..", density=0, horizon=5)
    goal = model.goals(1)[1][0]
    world = ModelWorld(model, goals={1: [goal]})
    world.reset(seed=0)
    earned = []
    for action in (3, 1, 3, 4, 4):  # east onto the goal, west, east onto it again, pass, pass
        world.act([4, action])
        earned.append([world.reward(0), world.reward(1)])
    assert earned == [[1.0, 1.0], *([[0.0, 0.0]] * 4)]
    (first, second) = world.ended()
    assert first.terminated
    assert second.terminated
    assert not first.truncated
    assert not world.group()


def test_goal_that_holds_at_the_start_is_rewarded_when_it_holds_again():
    model = Bushes("H..\nR..", density=0, horizon=2)
    world = ModelWorld(model, goals={1: [model.goals(1)[0][0]]})
    world.reset(seed=0)
    world.act([4, 4])
    assert world.reward(1) == 1.0


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    bushes = Bushes("H.R\n..H", density=4, thickest=5, horizon=4)
    solution = solve(enumerate_states(bushes), {h: bushes.goals(h) for h in (1, 2)}, Humans(achieved="stay", still=4))
    path = tmp_path_factory.mktemp("plans") / "bushes"
    solution.save(path)
    return bushes, solution, path


def test_played_goals_are_attained_as_often_as_the_plan_says(planned):
    bushes, solution, path = planned
    world = ModelWorld(bushes)
    policies = [
        PlannedPolicy.load(path, "robot_0", bushes),
        PlannedPolicy.load(path, "human_0", bushes, goal="drawn"),
        PlannedPolicy.load(path, "human_1", bushes),  # acts by its prior
    ]
    reached = returns(world, 1500, policies)
    assert_mean(reached[:, 1], solution.power(solution.graph.states[0], "human_0"))  # weights have the sum 1


def test_played_rewards_have_the_expected_value():
    rooms = Rooms("passage", horizon=4)
    graph = enumerate_states(rooms, rewards=True)
    best = best_response(graph, "human_1")
    world = ModelWorld(rooms)

    class Best:
        def reset(self, seed):
            pass

        def act(self, seen):
            return int(best.choice[graph.number(rooms.state_of(seen, "human_1"))])

    class Uniform:
        def reset(self, seed):
            self.rng = np.random.default_rng(seed)

        def act(self, seen):
            return int(self.rng.integers(4))

    earned = returns(world, 1500, [Uniform(), Best(), Uniform()])
    assert_mean(earned[:, 1], best.value[0])


def test_plan_is_evaluated_in_the_world_of_its_model(planned):
    bushes, solution, path = planned
    make = functools.partial(Bushes, bushes.map, density=4, thickest=5, horizon=4)
    policies = {
        name: PolicySpec(PlannedPolicy.load, {"path": str(path), "agent": name, "world": make, **goal}, name)
        for name, goal in (("robot_0", {}), ("human_0", {"goal": "drawn"}), ("human_1", {}))
    }
    result = motet.evaluate(make, policies, episodes=300, seed=5, jobs=1)
    assert_mean(result.returns("human_0"), solution.power(solution.graph.states[0], "human_0"))


def test_drawn_goals_need_a_world_that_draws_them(planned):
    *_, path = planned

    class Foreign:
        def state_of(self, observation, agent):
            return observation

    with pytest.raises(SettingError, match="goal must not be 'drawn' unless the world has goal_of"):
        PlannedPolicy.load(path, "human_0", Foreign(), goal="drawn")


def test_agents_act_in_turn_where_the_model_says_so():
    world = ModelWorld(SmallHunt(turns=2))
    world.reset(seed=0)
    groups = []
    while group := list(world.group()):
        groups.append(group)
        world.act([1] * len(group))
    assert groups == [[0], [1], [0], [1]]


def test_turns_truncate_a_model_without_an_end():
    check_world(lambda: ModelWorld(Rooms(horizon=0), turns=5), episodes=1)
    world = ModelWorld(Rooms(horizon=0), turns=5)
    trace, ends = played(world, 0, lambda world, agent, seen: 0)
    assert len(trace) == 5
    assert [(end.terminated, end.truncated) for end in ends] == [(False, True)] * 2
    with pytest.raises(SettingError, match="turns must be an int >= 1, or None for no limit, got 0"):
        ModelWorld(Rooms(), turns=0)


def test_model_without_rewards_and_goals_is_refused():
    class Bare:
        agents = ("a",)
        action_space = Bushes().action_space

        def reset(self):
            pass

        def get_state(self):
            return (0,)

        def set_state(self, state):
            pass

        def transition_probabilities(self, state, actions):
            return None

    with pytest.raises(SettingError, match="model must have transition_rewards, or human_agent_indices and goals"):
        ModelWorld(Bare())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: [(0.5, (1, 0)), (0.6, (1, 1))], "probabilities >= 0 that sum to 1"),
        (list, r"transition_probabilities gave \[\] in a state that is not terminal"),
        (lambda: 1 / 0, "transition_probabilities raised ZeroDivisionError"),
    ],
)
def test_model_that_fails_is_named_with_state_and_actions(answer, says):
    class Failing(Layered):
        def transition_probabilities(self, state, actions):
            return answer() if actions[0] else super().transition_probabilities(state, actions)

    world = ModelWorld(Failing(), goals=Layered().goals)
    world.reset(seed=0)
    with pytest.raises(WorldError, match=rf"Failing \(step 0, state .*\(0, 0\), actions \[1, 0, 1\]\): .*{says}"):
        world.act([1, 0, 1])


def test_wrong_actions_are_refused():
    world = ModelWorld(Bushes())
    world.reset(seed=0)
    with pytest.raises(WorldError, match="human_0: the action is 5; expected 0 to 4"):
        world.act([0, 5, 0])
    with pytest.raises(WorldError, match=r"act\(\) got 1 actions; expected 3"):
        world.act([0])


def test_pictures_show_the_plan(planned):
    bushes, solution, _ = planned
    plain, drawn = ModelWorld(bushes), ModelWorld(bushes, plan=solution)
    for world in (plain, drawn):
        world.reset(seed=0)
    assert plain.render().shape == (32, 48, 3)
    first = drawn.render()
    assert first.shape == (96 + 20, 144, 3)  # enlarged, and a bar for each human
    ground = plain.render().repeat(3, axis=0).repeat(3, axis=1)
    assert (first[:96] != ground).any(axis=2).sum() > 100  # arrows
    for _ in range(4):
        drawn.act([4, 0, 0])
    last = drawn.render()
    assert (last[96:] == 246).all()  # at the end nobody has power
    assert (last[:96] == bushes.picture(drawn.state).repeat(3, axis=0).repeat(3, axis=1)).all()


def test_bushes_are_planned_and_evaluated_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan", "bushes", "--horizon", "3", "--humans.still", "4", "--out", "plan", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "155" in said
    assert "robot_0 at the start: north" in said
    given = ["eval", "bushes", "--world.horizon", "3", "-p", "plan,seat=robot_0", "-p", "plan,seat=human_0"]
    assert cli.main([*given, "-p", "plan,seat=human_1,kw.goal=drawn", "-n", "20", "--video", "film.gif"]) == 0
    assert (tmp_path / "film.gif").stat().st_size > 1000
