"""Object gridworlds as research projects write them: a small framework, and worlds with rules of their own.

Nothing here knows motet. Every world draws from the global generators, as such projects do, and every loop that plays
them is ``run_epoch``, the loop of their kind.
"""

import copy
import random
from types import SimpleNamespace

import numpy as np

# ---- the framework


class Entity:
    has_transitions = False
    value = 0.0

    def __init__(self):
        self.location = None

    @property
    def kind(self):
        return type(self).__name__

    def transition(self, world):
        pass


class Empty(Entity):
    has_transitions = True

    def transition(self, world):
        if np.random.random() < world.spawn:
            world.add(self.location, Gem())


class Gem(Entity):
    value = 10.0


class Gridworld:
    def __init__(self, height=4, width=5, spawn=0.05):
        self.height, self.width, self.spawn = height, width, spawn
        self.create_world()

    def create_world(self):
        self.total_reward, self.is_done = 0.0, False
        self.map = np.empty((self.height, self.width), object)
        for index in np.ndindex(self.map.shape):
            self.add(index, Empty())

    def add(self, location, entity):
        self.map[location] = entity
        entity.location = location

    def remove(self, location):
        self.add(location, Empty())

    def move(self, entity, there):
        if isinstance(self.map[there], Agent):
            return False
        self.remove(entity.location)
        self.add(there, entity)
        return True


class Memory:
    def __init__(self):
        self.rows = []

    def add(self, state, action, reward, done):
        self.rows.append((np.array(state), action, reward, done))


class RandomModel:
    """Plays at random, from a stream of its own, and keeps a memory."""

    def __init__(self, seed, actions=4):
        self.rng, self.actions, self.memory = random.Random(seed), actions, Memory()

    def take_action(self, state):
        return self.rng.randrange(self.actions)


class Agent(Entity):
    has_transitions = True

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.action_spec = SimpleNamespace(n_actions=4)

    def reset(self):
        pass

    def pov(self, world):
        gems = np.array([[isinstance(entity, Gem) for entity in line] for line in world.map], np.float64)
        return np.concatenate([gems.ravel(), self.location, [world.total_reward]]).reshape(1, -1)

    def get_action(self, state):
        return self.model.take_action(state.reshape(-1))

    def act(self, world, action):
        row, column = self.location
        step = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
        there = ((row + step[0]) % world.height, (column + step[1]) % world.width)
        reward = world.map[there].value
        return reward if world.move(self, there) else -1.0

    def is_done(self, world):
        return world.is_done

    def add_memory(self, state, action, reward, done):
        self.model.memory.add(state, action, reward, done)

    def transition(self, world):
        state = self.pov(world)
        action = self.get_action(state)
        reward = self.act(world, action)
        done = self.is_done(world)
        world.total_reward += reward
        self.add_memory(state, action, reward, done)


class Environment:
    n_agents, max_turns = 2, 20

    def __init__(self, seed=0):
        self.config = SimpleNamespace(experiment=SimpleNamespace(max_turns=self.max_turns))
        self.turn, self.world = 0, Gridworld()
        self.setup_agents(seed)
        self.populate_environment()

    def setup_agents(self, seed):
        self.agents = [Agent(RandomModel(seed + index)) for index in range(self.n_agents)]

    def populate_environment(self):
        spots = random.sample(list(np.ndindex(self.world.map.shape)), len(self.agents))
        for agent, location in zip(self.agents, spots, strict=True):
            self.world.add(location, agent)

    def reset(self):
        self.turn = 0
        self.world.create_world()
        self.populate_environment()
        for agent in self.agents:
            agent.reset()

    def take_turn(self):
        self.turn += 1
        for _, entity in np.ndenumerate(self.world.map):
            if entity.has_transitions and not isinstance(entity, Agent):
                entity.transition(self.world)
        for agent in self.agents:
            agent.transition(self.world)


def run_epoch(environment, seed):
    """The loop of such a project: one epoch."""
    random.seed(seed)
    np.random.seed(seed)
    environment.reset()
    while not environment.turn >= environment.config.experiment.max_turns:
        environment.take_turn()
        if environment.world.is_done:
            break
    environment.world.is_done = True


# ---- worlds with rules of their own


class Plain(Environment):
    """Nothing but the framework."""


class Shuffled(Environment):
    """Agents move in an order that is drawn in every turn."""

    n_agents = 3

    def take_turn(self):
        self.turn += 1
        order = list(self.agents)
        random.shuffle(order)
        for agent in order:
            agent.transition(self.world)


class FreezingAgent(Agent):
    frozen_for = 0

    def reset(self):
        self.frozen_for = 0

    def act(self, world, action):
        reward = super().act(world, action)
        if reward < 0:  # whoever bumps into somebody freezes
            self.frozen_for = 3
        return reward


class Freezing(Environment):
    """A frozen agent is not asked until it has thawed; the environment counts down."""

    n_agents = 4

    def setup_agents(self, seed):
        self.agents = [FreezingAgent(RandomModel(seed + index)) for index in range(self.n_agents)]
        self.thawed = 0

    def take_turn(self):
        self.turn += 1
        for agent in self.agents:
            if agent.frozen_for:
                agent.frozen_for -= 1
                self.thawed += agent.frozen_for == 0
            else:
                agent.transition(self.world)


class MortalAgent(Agent):
    def reset(self):
        self.dead = False

    def is_done(self, world):
        return self.dead

    def act(self, world, action):
        reward = super().act(world, action)
        self.dead = reward > 0  # gems are poisonous
        return reward


class Respawning(Environment):
    """A dead agent is put elsewhere in the next turn and lives on."""

    def setup_agents(self, seed):
        self.agents = [MortalAgent(RandomModel(seed + index)) for index in range(self.n_agents)]

    def take_turn(self):
        for agent in self.agents:
            if agent.dead:
                free = [at for at in np.ndindex(self.world.map.shape) if isinstance(self.world.map[at], Empty)]
                self.world.move(agent, random.choice(free))
                agent.dead = False
        super().take_turn()


class Absent(Environment):
    """In each epoch one agent at most sits out, and its place in the world is empty."""

    n_agents = 3

    def populate_environment(self):
        self.present = [agent for agent in self.agents if random.random() < 0.6] or self.agents[:1]
        spots = random.sample(list(np.ndindex(self.world.map.shape)), len(self.present))
        for agent, location in zip(self.present, spots, strict=True):
            self.world.add(location, agent)

    def take_turn(self):
        self.turn += 1
        for agent in self.present:
            agent.transition(self.world)


class HastyAgent(Agent):
    def transition(self, world):
        for _ in range(2):
            super().transition(world)


class AskedTwice(Environment):
    """The second agent moves twice in a turn."""

    def setup_agents(self, seed):
        self.agents = [Agent(RandomModel(seed)), HastyAgent(RandomModel(seed + 1))]


class TiredAgent(Agent):
    """Has rules of its own in its transition: it moves in every third turn, and rests in between."""

    def reset(self):
        self.energy = 1

    def transition(self, world):
        self.energy += 1
        if self.energy < 3:
            return
        self.energy = 0
        super().transition(world)


class OwnTransition:
    """An environment without a take_turn; its agents have a transition of their own."""

    def __init__(self, seed=0):
        self.max_turns, self.turn, self.world = 15, 0, Gridworld()
        self.agents = [TiredAgent(RandomModel(seed)), Agent(RandomModel(seed + 1))]
        self.reset()

    def reset(self):
        self.turn = 0
        self.world.create_world()
        for agent, location in zip(self.agents, random.sample(list(np.ndindex(4, 5)), 2), strict=True):
            self.world.add(location, agent)
            agent.reset()


class Wolf(Agent):
    """A scripted agent with a point of view: it walks to the right."""

    def get_action(self, state):
        return 3


class Sheep(Entity):
    """A scripted agent without one."""

    has_transitions = True

    def reset(self):
        self.steps = 0

    def transition(self, world):
        self.steps += 1
        row, column = self.location
        world.move(self, ((row + 1) % world.height, column))


class Scripted(Environment):
    """One agent that learns among two that do not."""

    def setup_agents(self, seed):
        self.agents = [Wolf(RandomModel(seed)), Agent(RandomModel(seed + 1)), Sheep()]


class NoisyAgent(MortalAgent):
    """What it sees is blurred, from the global generators."""

    def pov(self, world):
        return super().pov(world) + np.random.normal(size=(1, 23)) + random.random()


class Noisy(Respawning):
    """Global randomness everywhere, in what is seen too; and agents die and come back."""

    def setup_agents(self, seed):
        self.agents = [NoisyAgent(RandomModel(seed + index)) for index in range(self.n_agents)]


class Copied(Environment):
    """Every epoch begins with copies of the first one's agents; in mid-epoch an agent is replaced by its copy."""

    def setup_agents(self, seed):
        super().setup_agents(seed)
        self.models = [agent.model for agent in self.agents]
        for agent in self.agents:
            agent.model = None
        self.templates = copy.deepcopy(self.agents)

    def populate_environment(self):
        self.agents = copy.deepcopy(self.templates)
        for agent, model in zip(self.agents, self.models, strict=True):
            agent.model = model
        super().populate_environment()

    def take_turn(self):
        if self.turn % 5 == 4:
            old = self.agents[0]
            model, old.model = old.model, None
            self.agents[0] = twin = copy.deepcopy(old)
            twin.model = model
            self.world.add(old.location, twin)
        super().take_turn()


class Clearing(Environment):
    """The world itself is done when enough has been found."""

    max_turns = 200

    def take_turn(self):
        super().take_turn()
        if self.world.total_reward > 40:
            self.world.is_done = True


class CentredAgent(Agent):
    """Sees the gems relative to its own place."""

    def pov(self, world):
        gems = np.array([[isinstance(entity, Gem) for entity in line] for line in world.map], np.float64)
        return np.roll(gems, [-at for at in self.location], (0, 1)).reshape(1, -1)


class Centred(Environment):
    """Few gems, and agents that can learn to walk to them."""

    max_turns = 40

    def setup_agents(self, seed):
        self.world.spawn = 0.01
        self.agents = [CentredAgent(RandomModel(seed + index)) for index in range(self.n_agents)]


class SharedModel(Environment):
    """All agents ask one model, and remember nothing: their rewards are known to ``act`` alone."""

    class Forgetful(Agent):
        def transition(self, world):
            self.act(world, self.get_action(self.pov(world)))

    def setup_agents(self, seed):
        model = RandomModel(seed)
        self.agents = [self.Forgetful(model) for _ in range(3)]


WORLDS = (
    *(Plain, Shuffled, Freezing, Respawning, Absent, AskedTwice, OwnTransition, Scripted, Noisy, Copied, Clearing),
    SharedModel,
)
