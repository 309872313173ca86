"""Roster: who takes part in a run, grouped how, at what pace; from a world, algorithms and settings."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from motet.algorithm import AlgorithmConfig, ReaderSettings, Sizes
from motet.algorithms.catalogue import algorithm_config
from motet.errors import MotetError, SettingError, WorldError
from motet.pace import Pace
from motet.policy import PLAYER
from motet.replay import Field, ReplaySpec
from motet.system.imports import import_named
from motet.system.machine import usable_cores
from motet.system.portable import Portable
from motet.training.actor import MaxLag
from motet.training.opponents import SelfPlay
from motet.training.settings import Settings
from motet.world import World, as_world
from motet.world.masks import masked_agents
from motet.worlds.catalogue import world_factory

__all__ = [
    "AgentSpec",
    "Roster",
    "local_room",
    "make_roster",
    "pace_of",
]


@dataclass(frozen=True)
class AgentSpec:
    """One agent: what it sees and does, and what learns for it."""

    name: str
    observation_space: Any
    action_space: Any
    config: AlgorithmConfig
    settings: ReaderSettings
    sizes: Sizes
    masked: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class Roster:
    """Who takes part in a run."""

    world: Portable
    """Makes a world."""
    parts: tuple[AgentSpec, ...]
    """The agents."""
    stacks: tuple[tuple[int, ...], ...]
    """Agents that are learnt in one pass."""
    processes: tuple[tuple[int, ...], ...]
    """The stacks of each learner process."""
    actors: int
    worlds_per_actor: int
    steps: int
    """Steps of an agent in all worlds together."""
    pace: Pace
    seed: int
    publish_every: int = 10
    sync_interval: int = 1
    max_lag: MaxLag | None = None
    slots: int = 2
    checked: bool = False
    remake_worlds: bool = False
    self_play: SelfPlay | None = None
    """If there is one part alone, which learns to play all seats."""

    @property
    def partitions(self) -> dict[str, float]:
        """The partitions of a replay with their shares of a batch."""
        return {"": 1.0} if self.self_play is None else self.self_play.partitions(self.parts[0].settings.once)

    @property
    def lanes(self) -> int:
        """Lanes of a replay: one for each world and partition."""
        return self.actors * self.worlds_per_actor * len(self.partitions)

    def lanes_of(self, actor: int) -> list[int]:
        """The lanes of an actor's worlds, partition by partition."""
        every, mine = self.actors * self.worlds_per_actor, actor * self.worlds_per_actor
        starts = [part * every + mine for part in range(len(self.partitions))]
        return [lane for start in starts for lane in range(start, start + self.worlds_per_actor)]

    def stack_of(self, agent: int) -> int:
        """The stack that an agent is in."""
        return next(k for k, agents in enumerate(self.stacks) if agent in agents)

    def replay_spec(self, part: AgentSpec) -> ReplaySpec:
        """The replay of one agent."""
        settings = part.settings
        extra = {name: Field(item.shape, item.dtype, item.next) for name, item in settings.extra.items()}
        least = settings.batch_size + self.lanes * (settings.n_step + settings.n_frames + 1)
        if settings.once:
            # Any lane may have to hold all that waits, if the other actors are done or down: actors wait for the pace,
            # where they show a beat, and never for room.
            waiting = math.ceil(self.pace.slack_once + 2) * settings.batch_size
            least = self.lanes * ((waiting + 1) * settings.length + settings.n_frames + 2)
        return ReplaySpec(
            observation=part.observation_space,
            action=part.action_space,
            extra=extra,
            capacity=max(settings.capacity, least),
            lanes=dict.fromkeys(self.partitions, self.actors * self.worlds_per_actor),
            once=part.settings.once,
            checked=self.checked,
        )


def make_roster(world: Any, algorithm: Any, settings: Settings, room: int | None = None) -> Roster:
    """Who takes part in a run of this world with these algorithms, and at what pace.

    ``room``: for how many learner processes, if the settings do not say; by default this machine's.
    """
    factory = world_factory(world)
    made = _made(factory)
    probe = as_world(made)
    probe.reset(settings.seed)
    names = (PLAYER,) if settings.self_play else probe.agents
    given = algorithm if isinstance(algorithm, Mapping) else dict.fromkeys(names, algorithm)
    if set(given) != set(names):
        raise SettingError(f"algorithm must be given for each of {list(names)}, got {sorted(given)}")
    having_masks = masked_agents(probe)
    parts = []
    for i, name in enumerate(names):
        chosen = algorithm_config(given[name])
        spaces = probe.observation_spaces[i], probe.action_spaces[i]
        masked = i in having_masks
        try:
            replay = chosen.replay(*spaces, masked=masked)
            sizes = Sizes(*map(operator.index, chosen.sizes(*spaces)))  # numpy's numbers are as good
        except SettingError as error:
            raise SettingError(f"{name} with {type(chosen).__name__}: {error}") from error
        parts.append(AgentSpec(name, *spaces, chosen, replay, sizes, masked))
    self_play = _self_play(made, probe, parts[0], settings) if settings.self_play else None
    probe.close()
    stacks, processes = _share_out(parts, settings, local_room(settings) if room is None else room)
    return Roster(
        world=Portable(factory, "world"),
        parts=tuple(parts),
        stacks=stacks,
        processes=processes,
        actors=settings.actors,
        worlds_per_actor=settings.worlds_per_actor,
        steps=settings.steps,
        pace=pace_of(parts, settings),
        seed=settings.seed,
        publish_every=settings.publish_every,
        sync_interval=settings.sync_interval,
        max_lag=MaxLag(settings.max_lag_versions, settings.max_lag_steps),
        slots=1 if settings.publish == "snapshot" else 2,
        checked=settings.checked,
        remake_worlds=settings.remake_worlds,
        self_play=self_play,
    )


def _self_play(made: Any, world: World, part: AgentSpec, settings: Settings) -> SelfPlay:
    """Self-play in this world, if it is one for it."""
    if len(world.agents) != 2:
        raise SettingError(f"self_play is only valid with two players (got the agents {list(world.agents)})")
    for what, spaces in (("observation", world.observation_spaces), ("action", world.action_spaces)):
        if spaces[0] != spaces[1]:
            raise SettingError(
                f"self_play is only valid with equal {what} spaces (got {spaces[0]} and {spaces[1]}): one policy "
                "plays both sides"
            )
    if part.settings.n_frames > 1:
        raise SettingError(f"n_frames must be 1 in self-play, got {part.settings.n_frames}")
    play = SelfPlay.of(made, settings.league, lambda path: import_named(path, "anchors", []))
    if settings.evaluate_every is not None and not play.anchors:
        raise SettingError(
            "evaluate_every is only valid with anchors in self-play, where evaluations are games against them (got "
            "none)"
        )
    return play


def pace_of(parts: Sequence[AgentSpec], settings: Settings) -> Pace:
    """The balance between acting and learning."""
    ratio, slack = settings.updates_per_step, settings.slack
    once = [part.name for part in parts if part.settings.once]
    if len(once) == len(parts) and ratio is not None:
        raise SettingError(
            f"updates_per_step must be None, got {ratio}: one update belongs to each batch of rows of "
            f"{', '.join(once)}, which are read once"
        )
    if settings.engine == "serial":
        return Pace(1.0 if ratio is None else ratio, 0, 0)
    if once and ratio is None and len(once) < len(parts):
        raise SettingError(
            f"updates_per_step must be a number, got None: learners would run freely, but {', '.join(once)} read "
            "every row once, and a full lane would stall the other agents"
        )
    if not once and ratio is None:
        if slack is not None:
            raise SettingError("slack is only valid with updates_per_step (got None)")
        return Pace()
    ahead = 1.0 if slack is None else slack
    if once and math.isinf(ahead):
        raise SettingError(
            f"slack must be a finite number, got {slack}: {', '.join(once)} read every row once, and a full lane "
            "would stall the other agents"
        )
    if len(once) == len(parts):
        return Pace(slack=ahead, slack_once=ahead)
    assert ratio is not None
    return Pace(ratio, max(32.0, ratio) if slack is None else slack, ahead if once else 1.0)


def _made(factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except MotetError:
        raise
    except Exception as error:
        raise WorldError(f"the world could not be made: {type(error).__name__}: {error}") from error


def _share_out(
    parts: Sequence[AgentSpec], settings: Settings, room: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Agents to learner processes in equal numbers; within one, equal agents to one stack."""
    wanted = settings.learner_processes or room
    count = min(wanted, len(parts))
    if settings.learner_processes is not None and settings.learner_processes > len(parts):
        raise SettingError(f"learner_processes must be at most {len(parts)}, one for each agent, got {wanted}")
    stacks: list[tuple[int, ...]] = []
    processes: list[tuple[int, ...]] = []
    for agents in np.array_split(np.arange(len(parts)), count):
        equal: dict[str, list[int]] = {}
        for a in agents.tolist():
            part = parts[a]
            # Rows that are read once set the pace: in one stack the agent with the fewest would hold up the others.
            alone = a if part.settings.once else None
            kind = repr((alone, part.config, part.observation_space, part.action_space, part.masked))
            equal.setdefault(kind, []).append(a)
        processes.append(tuple(range(len(stacks), len(stacks) + len(equal))))
        stacks.extend(tuple(group) for group in equal.values())
    return tuple(stacks), tuple(processes)


def local_room(settings: Settings) -> int:
    """For how many learner processes there is room beside the actors on this machine."""
    return max(1, usable_cores() - settings.actors)
