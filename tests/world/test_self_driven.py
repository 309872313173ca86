"""Object gridworlds that play their own turns: every rule of theirs holds, compared with their own loops."""

import copy
import pickle
import random
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from support import foreign_gridworlds as foreign
from support.foreign_gridworlds import WORLDS, RandomModel, run_epoch

from motet.algorithms.dqn import DQNConfig
from motet.errors import SettingError, WorldError
from motet.evaluation.evaluate import evaluate
from motet.testing import check_world
from motet.training.league import League
from motet.training.run import train
from motet.training.settings import Settings
from motet.world import as_world, from_objects

LEARNERS = {foreign.Scripted: [1]}
TURNS = {foreign.OwnTransition: 15}


def own_rows(make, seed):
    """(turn, agent, observation, action, reward, end) of one epoch, as the project's own loop remembers them."""
    environment, rows = make(), []
    everyone = list(environment.agents)

    def recorded(index):
        def add(state, action, reward, done):
            rows.append([environment.turn, index, np.ravel(state).tolist(), action, reward, done])

        return add

    for index, agent in enumerate(everyone):
        if hasattr(agent, "model") and hasattr(agent.model or environment.models[index], "memory"):
            (agent.model or environment.models[index]).memory.add = recorded(index)
    if make is foreign.SharedModel:  # nothing is remembered: note what happens
        record_forgetful(environment, rows)
    if hasattr(environment, "take_turn"):
        run_epoch(environment, seed)
    else:
        random.seed(seed)
        np.random.seed(seed)
        environment.reset()
        while environment.turn < environment.max_turns:
            environment.turn += 1
            for _, entity in np.ndenumerate(environment.world.map):
                if entity.has_transitions and not isinstance(entity, foreign.Agent):
                    entity.transition(environment.world)
            for agent in environment.agents:
                agent.transition(environment.world)
        environment.world.is_done = True
    return environment, rows


def record_forgetful(environment, rows):
    for index, agent in enumerate(environment.agents):

        def transition(world, agent=agent, index=index):
            state = agent.pov(world)
            action = agent.get_action(state)
            row = [environment.turn, index, np.ravel(state).tolist(), action, agent.act(world, action)]
            rows.append([*row, agent.is_done(world)])

        agent.transition = transition


def our_rows(make, seed, **settings):
    """The same of the World, with the actions that the models would have chosen."""
    environment = make()
    models = [getattr(agent, "model", None) for agent in environment.agents]
    if make is foreign.Copied:
        models = environment.models
    world = from_objects(environment, learners=LEARNERS.get(make), **settings)
    indices = [int(name.split("_")[1]) for name in world.agents]
    rows, last = [], {}
    world.reset(seed)
    while group := world.group():
        (agent,) = group
        reward = world.reward(agent)
        if agent in last:
            last.pop(agent)[4:] = [reward, False]
        observation = world.observe(agent)
        action = models[indices[agent]].take_action(observation)
        rows.append([environment.turn, indices[agent], np.ravel(observation).tolist(), action, None, None])
        last[agent] = rows[-1]
        world.act([action])
        for end in world.ended():
            last.pop(end.agent)[4:] = [end.reward, end.terminated]
    assert not last
    return environment, rows


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("make", WORLDS)
def test_a_world_with_its_own_rules_plays_as_its_own_loop_does(make, seed):
    theirs, expected = own_rows(make, seed)
    ours, rows = our_rows(make, seed)
    learners = LEARNERS.get(make)
    expected = [row for row in expected if learners is None or row[1] in learners]
    for row in expected:
        row[2] = np.array(row[2], np.float32).tolist()
    if make is foreign.Clearing:  # the world is done after its agents have remembered their last turn
        assert theirs.turn < theirs.max_turns
        for row in expected[-2:]:
            row[5] = True
    assert len(rows) == len(expected) > 10
    assert rows == expected
    assert ours.turn == theirs.turn and ours.world.is_done == theirs.world.is_done
    assert ours.world.total_reward == theirs.world.total_reward
    assert [type(entity) for entity in ours.world.map.flat] == [type(entity) for entity in theirs.world.map.flat]
    assert getattr(ours, "thawed", 0) == getattr(theirs, "thawed", 0)


@pytest.mark.parametrize("make", WORLDS)
def test_such_worlds_keep_the_contract(make):
    check_world(lambda: from_objects(make(), learners=LEARNERS.get(make)))


def play(world, seed, choose=lambda agent: 0):
    """(agent, its observation) of one episode."""
    world.reset(seed)
    seen = []
    while group := world.group():
        seen.append((group[0], world.observe(group[0]).tobytes()))
        world.act([choose(group[0])])
        world.ended()
    return seen


def test_the_other_agents_keep_their_own_choices():
    wolves = from_objects(foreign.Scripted(), learners=foreign.Wolf)
    assert wolves.agents == ("agent_0",) and wolves.action_spaces == (Discrete(4),)
    environment = foreign.Scripted()
    world = from_objects(environment, learners=[1])
    assert world.agents == ("agent_1",)
    world.reset(0)
    column = environment.agents[0].location[1]
    while world.group():
        world.act([0])
    assert environment.agents[2].steps >= environment.turn == 20
    assert environment.agents[0].location[1] != column or environment.turn % environment.world.width == 0
    assert as_world(foreign.Scripted()).agents == ("agent_0", "agent_1")  # a sheep sees nothing


def test_an_agent_that_shares_its_model_is_known_by_its_transition():
    class Stacking(foreign.Environment):
        """Its agents stack frames before they ask the one model of all."""

        class Stacker(foreign.Agent):
            def get_action(self, state):
                return int(self.model.take_action(np.stack([state, state])[None]))

        n_agents = 3

        def setup_agents(self, seed):
            model = RandomModel(seed)
            self.agents = [self.Stacker(model) for _ in range(2)] + [foreign.Wolf(model)]

        def take_turn(self):
            self.turn += 1
            for agent in reversed(self.agents):
                agent.transition(self.world)

    world = from_objects(Stacking(), ask="take_action", learners=[0, 1])
    seen = play(world, 3)
    assert [agent for agent, _ in seen[:4]] == [1, 0, 1, 0]
    assert len(seen) == 40
    assert world.observation_spaces[0].shape == (1, 23)  # what the agent saw, not what its model was given
    assert seen == play(from_objects(Stacking(), learners=[0, 1]), 3)


def test_an_agent_without_rules_beside_one_with_rules():
    class Bare:
        """Only sees and acts; motet asks it when the others have had their transitions."""

        action_spec = foreign.SimpleNamespace(n_actions=2)

        def pov(self, world):
            return [world.total_reward]

        def act(self, world, action):
            self.left -= 1
            return action

        def is_done(self, world):
            return self.left == 0

    class Mixed(foreign.OwnTransition):
        def reset(self):
            self.agents = self.agents[:2]
            super().reset()
            self.bare.left = 4
            self.agents.append(self.bare)

        def __init__(self):
            self.bare = Bare()
            super().__init__()

    world = from_objects(Mixed(), turns=9)
    world.reset(0)
    total, ends = [0.0] * 3, []
    while group := world.group():
        world.act([1])
        for end in world.ended():
            total[end.agent] += end.reward
            ends.append((end.agent, end.terminated))
        total[group[0]] += world.reward(group[0])
    assert total[2] == 4 and ends == [(2, True), (0, False), (1, False)]


def test_a_reset_leaves_a_half_played_turn_without_playing_the_rest():
    events = []

    class Careful(foreign.Environment):
        def take_turn(self):
            events.append("begin")
            try:
                super().take_turn()
                events.append("end")
            finally:
                events.append("cleanup")
                if events[0] == "ask":
                    self.agents[0].get_action(None)  # a question from a cleanup block
                    events.append("never")

    world = from_objects(Careful())
    world.reset(0)
    world.group()
    world.reset(0)
    assert events == ["begin", "cleanup"]
    for _ in range(3):
        world.group()
        world.act([0])
    events[:] = ["ask"]
    world.reset(0)
    assert events == ["ask", "cleanup"]
    events[:] = [""]
    assert len(play(world, 0)) == 40 and events.count("end") == 20
    assert not world.can_save


def test_a_world_that_is_closed_leaves_its_turn():
    events = []

    class Careful(foreign.Environment):
        def take_turn(self):
            try:
                super().take_turn()
            finally:
                events.append("cleanup")

    world = from_objects(Careful())
    world.reset(0)
    world.group()
    world.close()
    assert events == ["cleanup"]


def test_code_that_catches_everything_is_left_too():
    class Stubborn(foreign.Environment):
        class Agent(foreign.Agent):
            def get_action(self, state):
                raise AssertionError("the body of a method that asks does not run")

            def transition(self, world):
                try:
                    super().transition(world)
                except:  # noqa: E722
                    self.act(world, 0)

        def setup_agents(self, seed):
            self.agents = [self.Agent(None) for _ in range(2)]

        def populate_environment(self):
            super().populate_environment()
            for agent in self.agents:
                agent.add_memory = lambda *row: None

    world = from_objects(Stubborn())
    world.reset(0)
    world.group()
    assert len(play(world, 0)) == 40


def test_errors_name_the_users_class_agent_and_action():
    class Explosive(foreign.Environment):
        def take_turn(self):
            super().take_turn()
            if self.turn == 2:
                raise ValueError("boom")

    world = from_objects(Explosive())
    world.reset(7)
    with pytest.raises(
        WorldError, match=r"Explosive \(agent agent_1, step 4, seed 7, action int 2\).*ValueError: boom"
    ):
        for _ in range(4):
            world.group()
            world.act([2])

    class Unclear(foreign.Environment):
        class Agent(foreign.Agent):
            def transition(self, world):
                self.act(world, self.get_action(self.pov(world)))

            def act(self, world, action):
                return "a lot"

        def setup_agents(self, seed):
            self.agents = [self.Agent(None)]

    world = from_objects(Unclear())
    world.reset(0)
    world.group()
    with pytest.raises(WorldError, match=r"Unclear.*act\(\) returned str 'a lot'; expected a number"):
        world.act([2])
    with pytest.raises(WorldError, match=r"OwnTransition.*expected 0 to 3"):
        plain = from_objects(foreign.OwnTransition())
        plain.reset(0)
        plain.group()
        plain.act([4])

    class Lonely(foreign.Environment):
        def reset(self):
            super().reset()
            if self.alone:
                self.agents = [foreign.Agent(None)]

        alone = False

    lonely = Lonely()
    world = from_objects(lonely)
    lonely.alone = True
    with pytest.raises(WorldError, match=r"Lonely.*holds 1 agents, one of them a new Agent; expected 2"):
        world.reset(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: from_objects(foreign.Plain(), ask="act"),
            "ask must be 'get_action', 'take_action' or None, got 'act'",
        ),
        (
            lambda: from_objects(foreign.Plain(), learners=[2]),
            r"learners must be indices from 0 to 1, or .*\[2\]",
        ),
        (lambda: from_objects(foreign.Plain(), learners=["agent_0"]), "learners must be indices from 0 to 1"),
        (lambda: from_objects(foreign.Plain(), learners=[]), "learners must be different agents of Plain"),
        (lambda: from_objects(foreign.Plain(), learners=foreign.Wolf), "learners must be different agents of Plain"),
        (
            lambda: from_objects(foreign.Scripted(), learners=[2]),
            "agents of Scripted must have .*, got a Sheep without pov, ",
        ),
        (lambda: from_objects(foreign.Plain(), turns=2.5), "turns must be an int >= 1, or math.inf .*got 2.5"),
        (lambda: from_objects(Limited()), "config.experiment.max_turns of Limited must be an int >= 1.*got 'many'"),
        (lambda: from_objects(Needy()), r"take_turn of Needy must take no argument without a default, got \(epoch\)"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()


class Limited(foreign.Environment):
    max_turns = "many"


class Needy(foreign.Environment):
    def take_turn(self, epoch):
        pass


class Endless(foreign.Respawning):
    """Without a limit, and whoever dies stays dead."""

    def __init__(self):
        super().__init__()
        del self.config

    max_turns = property(lambda self: None)

    def take_turn(self):
        self.turn += 1
        for agent in self.agents:
            if not agent.dead:
                agent.transition(self.world)
                self.world.add((0, 0) if agent.location != (0, 0) else (0, 1), foreign.Gem())


def test_without_a_limit_an_episode_ends_when_all_that_acted_are_done():
    world = from_objects(Endless())
    rng = random.Random(1)
    seen = play(world, 0, lambda agent: rng.randrange(4))
    assert 0 < len(seen) < 100_000 and {agent for agent, _ in seen} == {0, 1}


def test_a_world_that_asks_no_agent_does_not_block_forever():
    class Silent(foreign.Environment):
        def take_turn(self):
            self.turn += 1

    world = from_objects(Silent())
    world.reset(0)
    with pytest.raises(
        WorldError, match=r"Silent.*no agent was asked for an action in 100 episodes; expected take_turn"
    ):
        world.group()
    world = from_objects(Silent(), turns=float("inf"))
    world.reset(0)
    with pytest.raises(WorldError, match=r"Silent.*no agent was asked for an action in 1000 turns; expected take_turn"):
        world.group()


def test_an_agent_that_is_asked_outside_of_a_turn_raises():
    environment = foreign.Plain()
    world = from_objects(environment)
    world.reset(0)
    with pytest.raises(RuntimeError, match="agent_0 was asked for an action outside of a turn"):
        environment.agents[0].get_action(None)

    class Eager(foreign.Environment):
        def reset(self):
            super().reset()
            if self.eager:
                self.agents[0].get_action(None)

        eager = False

    environment = Eager()
    world = from_objects(environment)
    world.reset(0)
    world.group()
    environment.eager = True  # and a turn is half played
    with pytest.raises(WorldError, match=r"Eager.*reset\(\) raised RuntimeError: agent_0 was asked"):
        world.reset(0)


def test_the_original_memory_is_kept_unless_it_is_not_wanted():
    for remember, rows in ((True, 20), (False, 0)):
        environment = foreign.Plain()
        play(from_objects(environment, remember=remember), 0)
        assert [len(agent.model.memory.rows) for agent in environment.agents] == [rows, rows]


def test_agents_can_be_copied_and_pickled_while_they_are_watched():
    environment = foreign.Plain()
    world = from_objects(environment)
    world.reset(0)
    world.group()
    agent = pickle.loads(pickle.dumps(environment.agents[0]))  # noqa: S301
    assert agent.get_action(np.zeros(1)) in range(4)  # its own, not ours
    assert np.array_equal(agent.pov(environment.world), environment.agents[0].pov(environment.world))
    twin = copy.deepcopy(environment.agents[1])
    assert vars(twin)["pov"].owner is twin


def test_both_sides_keep_their_own_torch_mode():
    torch = pytest.importorskip("torch")

    class Frugal(foreign.Environment):
        def take_turn(self):
            assert torch.is_grad_enabled()
            with torch.no_grad():
                super().take_turn()
                assert not torch.is_grad_enabled()

    world = from_objects(Frugal())
    world.reset(0)
    while world.group():
        assert torch.is_grad_enabled()
        with torch.no_grad():
            world.act([0])
    assert torch.is_grad_enabled()


def test_the_worlds_own_end_counts_only_where_it_stops_the_epoch():
    class Lasting(foreign.Clearing):
        stop_if_done = False
        max_turns = 50

    environment = Lasting()
    play(from_objects(environment), 0, lambda agent: random.randrange(4))
    assert environment.turn == 50

    class Stale(foreign.Environment):
        def reset(self):
            super().reset()
            self.world.is_done = True  # nobody clears it

    environment = Stale()
    play(from_objects(environment), 0)
    assert environment.turn == 20


def test_a_film_has_one_frame_for_each_turn():
    from motet.world.film import Film

    class Painted(foreign.Freezing):
        frames = 0

        def render(self):
            self.frames += 1
            return np.full((4, 4, 3), self.turn, np.uint8)

    for make in (Painted, type("Hasty", (Painted, foreign.AskedTwice), {})):
        environment = make()
        world, film = from_objects(environment), Film()
        world.reset(0)
        film.capture(world)
        while group := world.group():
            world.act([0])
            film.capture(world, group)
        assert [frame[0, 0, 0] for frame in film._frames] == list(range(21))


SMALL = DQNConfig(hidden=(16,), batch_size=16, min_rows=32, capacity=1000)


def make_learning(name):
    make = getattr(foreign, name)
    return from_objects(make(), learners=LEARNERS.get(make))


@pytest.mark.parametrize("name", ["Respawning", "Absent", "SharedModel"])
def test_lockstep_is_serial_in_such_worlds(name):
    """With one world, since they draw from the generators of the whole process."""
    work = partial(make_learning, name)
    settings = {"steps": 250, "updates_per_step": 0.25}
    serial = train(work, SMALL, Settings(engine="serial", **settings))
    lockstep = train(work, SMALL, Settings(slack=0, **settings))
    assert serial.steps == lockstep.steps and serial.updates == lockstep.updates
    for agent, arrays in serial.agents.items():
        for part in ("state", "counters", "random"):
            assert np.array_equal(arrays[part], lockstep.agents[agent][part])


@pytest.mark.parametrize("make", [foreign.Shuffled, foreign.Respawning, foreign.Absent, foreign.Copied])
def test_several_such_worlds_in_one_actor_and_their_evaluation(make, tmp_path):
    work = partial(make_learning, make.__name__)
    result = train(work, SMALL, Settings(steps=120, engine="serial", worlds_per_actor=3), run=tmp_path / "run")
    assert result.steps >= 120
    played = [evaluate(work, [tmp_path / "run", "random"], episodes=4, jobs=jobs) for jobs in (1, 2)]
    assert played[0].deterministic() == played[1].deterministic()


def test_self_play_in_such_a_world():
    league = League(block=2, snapshot_every=100)
    settings = Settings(steps=300, engine="serial", self_play=True, league=league, worlds_per_actor=2)
    assert train(partial(make_learning, "Plain"), SMALL, settings).steps >= 300
