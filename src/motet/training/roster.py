"""Roster: the participants of a run: agents, their policies, how policies are grouped for learning, and the pace.

A learned *policy* has a name, an algorithm, a device, settings of its publication, and the agents that act by it. Each
of these policies has one replay, one publication, one learner, one set of metrics and one part of a checkpoint. By
default each agent has a separate policy with the agent's name. In self-play there is one policy, the player, for both
sides. A *partner* is a given policy that only acts, so it has no replay, publication or learner.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import AlgorithmConfig, ReaderSettings, Sizes
from motet.algorithms.catalogue import algorithm_config
from motet.errors import MotetError, SettingError, WorldError
from motet.pace import Pace
from motet.placement import placed
from motet.policies.partner import as_partner
from motet.policy import PLAYER
from motet.replay import Field, ReplaySpec
from motet.streams import Streams, StreamUser, streams_returned
from motet.system.devices import torch_found
from motet.system.imports import import_named
from motet.system.machine import usable_cores
from motet.system.portable import Portable
from motet.training.actor import MaxLag
from motet.training.opponents import SelfPlay
from motet.training.partners import FixedPolicy, fixed_policies
from motet.training.settings import AgentSettings, Settings
from motet.training.start import start_row
from motet.world import World, as_world
from motet.world.masks import masked_agents
from motet.world.winning import WinRule
from motet.worlds.catalogue import suggestions, world_factory

__all__ = [
    "AgentSpec",
    "LearnedPolicy",
    "Roster",
    "fitted_world",
    "local_room",
    "make_roster",
    "pace_of",
]


# in reproducible runs: updates per period, default updates per step, maximum number of policies in a stack
_UPDATES, _RATIO, _STACK = 8, 0.25, 8


@dataclass(frozen=True)
class AgentSpec:
    """One agent of the world, and the policy it acts by."""

    name: str
    observation_space: Any
    action_space: Any
    policy: int | None
    """Index of its policy in the roster; None if it acts by a partner."""
    number: int = 0
    """Index of its lane among those that the policy has for one world."""
    masked: bool = False
    """Whether the world is asked for its action masks."""


@dataclass(frozen=True)
class LearnedPolicy:
    """One learned policy: its spaces, its algorithm, its publication and the agents that act by it."""

    name: str
    agents: tuple[int, ...]
    """Indices of its agents in the roster."""
    observation_space: Any
    action_space: Any
    config: AlgorithmConfig
    settings: ReaderSettings
    """How the algorithm reads the replay."""
    sizes: Sizes
    masked: bool = False
    """Whether the policy's agents have action masks."""
    device: str = "cpu"
    """Device on which the policy is learned. While the roster is being made: the value of the setting ``device``."""
    slots: int = 2
    """Number of slots of its publication: 1 or 2."""
    publish_every: int = 10
    """Updates between two published versions."""
    partitions: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})
    """The partitions of its replay, with the share of a batch that comes from each."""
    start: npt.NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """The state with which the learner starts, from another run; None: a new one."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The settings that were given for this agent (:class:`AgentSettings`)."""
    lanes_per_world: int = 1
    """Lanes for each world in each partition: one for each agent of the policy whose steps are recorded. In self-play
    that is one of the two agents, since the league plays the other side."""

    @property
    def kind(self) -> str:
        """Key that two policies must share to be updated in one pass."""
        spaces, lanes = (self.observation_space, self.action_space), (self.partitions, self.lanes_per_world)
        return repr((self.config, spaces, self.masked, self.device, self.slots, self.publish_every, lanes))


@dataclass(frozen=True)
class Roster:
    """The participants of a run: world, agents, policies, processes and pace."""

    world: Portable
    """The world factory."""
    agents: tuple[AgentSpec, ...]
    """The agents, in the order of the world."""
    policies: tuple[LearnedPolicy, ...]
    """The policies that are learned."""
    stacks: tuple[tuple[int, ...], ...]
    """The policies of each stack, by index."""
    processes: tuple[tuple[int, ...], ...]
    """The stacks of each learner process, by index."""
    actors: int
    worlds_per_actor: int
    steps: int
    """Steps of each agent, summed over all worlds; UNLIMITED if only episodes or seconds end the run."""
    pace: Pace
    seed: int
    sync_interval: int = 1
    max_lag: MaxLag | None = None
    checked: bool = False
    remake_worlds: bool = False
    self_play: SelfPlay | None = None
    """The league and its anchors if one policy learns to play both sides; None without self-play."""
    episodes: int | None = None
    """Number of episodes of the run, which are divided among the worlds; None: no limit."""
    partners: tuple[FixedPolicy, ...] = ()
    """The partners: given policies that only act."""
    replay_directory: str | None = None
    """Folder of the file that holds the replays; None if they are in memory."""
    win_rule: WinRule | None = None
    """The rule by which a two-player world decides who wins; None: it declares none."""
    staged: tuple[int, ...] = ()
    """The policies whose stages count for worlds: they get the least advanced of these stages."""
    evaluate_every: int = 0
    """With periods: number of steps between two evaluations; 0: no evaluations."""
    exact: bool = False
    """With periods: whether checkpoints contain all that a run needs to continue as if it had never stopped."""

    @property
    def masked(self) -> list[bool]:
        """For each agent of the world, whether the world is asked for its action masks."""
        return [agent.masked for agent in self.agents]

    @property
    def fixed_agents(self) -> list[tuple[str, FixedPolicy]]:
        """The agents for which a partner acts, as pairs (name, partner), in the order of their rows on the board."""
        return [(name, partner) for partner in self.partners for name in partner.seats.agents]

    def configs(self) -> dict[str, Any]:
        """The algorithm or the partner of each agent, in the order of the world; in self-play the algorithm of the
        player."""
        found = {policy.name: policy.config for policy in self.policies}
        fixed = {name: partner.partner.value for name, partner in self.fixed_agents}
        names = [agent.name for agent in self.agents] if fixed else list(found)
        return {name: found[name] if name in found else fixed[name] for name in names}

    def slots(self, policy: int) -> int:
        """Number of versions in the publication of a policy.

        With an exact checkpoint, two versions must still be there after the last phase: the version of the period in
        which the run ended, and the version after that.
        """
        return 3 if self.exact else self.policies[policy].slots

    def lanes(self, policy: int) -> int:
        """Number of lanes in the replay of a policy."""
        spec = self.policies[policy]
        return self.actors * self.worlds_per_actor * spec.lanes_per_world * len(spec.partitions)

    def lanes_of(self, policy: int, actor: int) -> list[int]:
        """The lanes of a policy that an actor writes: by partition, then by world, then by the agent's number."""
        spec = self.policies[policy]
        mine = self.worlds_per_actor * spec.lanes_per_world
        starts = [(partition * self.actors + actor) * mine for partition in range(len(spec.partitions))]
        return [lane for start in starts for lane in range(start, start + mine)]

    def stack_of(self, policy: int) -> int:
        """Index of the stack of a policy."""
        return next(k for k, policies in enumerate(self.stacks) if policy in policies)

    def policies_of(self, process: int) -> list[int]:
        """Indices of the policies of a learner process, in the order of its stacks."""
        return [policy for k in self.processes[process] for policy in self.stacks[k]]

    def replay_spec(self, policy: int) -> ReplaySpec:
        """The layout of the replay of one policy."""
        spec, lanes = self.policies[policy], self.lanes(policy)
        settings = spec.settings
        extra = {name: Field(item.shape, item.dtype, item.next) for name, item in settings.extra.items()}
        # Up to half of all rows may be the last one of an episode, at which no transition starts and which has no
        # priority.
        starts = settings.batch_size * (max(2, settings.stride) if settings.prioritised else 1)
        least = starts + lanes * (settings.reads_ahead + settings.stride + settings.n_frames + self.pace.room)
        if settings.once:
            # If the other actors are done or dead, a single lane may have to hold all unread rows. With this capacity
            # actors
            # always wait for the pace, during which they send heartbeats, and never for room in a lane.
            # With periods, a lane must hold an unfinished batch, the period that is learned from and the one that
            # is played.
            waiting = math.ceil(self.pace.slack_once + 2) * settings.batch_size
            played = 2 * self.pace.rows_of_period
            least = lanes * ((waiting + 1) * settings.length + settings.n_frames + 2 + played)
        return ReplaySpec(
            observation=spec.observation_space,
            action=spec.action_space,
            extra=extra,
            capacity=max(settings.capacity, least),
            lanes=dict.fromkeys(spec.partitions, lanes // len(spec.partitions)),
            once=settings.once,
            checked=self.checked,
        )


def dealt(episodes: int, actors: int, worlds: int) -> list[list[int]]:
    """Return how many episodes each world of each actor plays: equal parts, and one more for the first worlds.

    >>> dealt(7, actors=2, worlds=2)
    [[2, 2], [2, 1]]
    """
    least, more = divmod(episodes, actors * worlds)
    return [[least + (actor * worlds + world < more) for world in range(worlds)] for actor in range(actors)]


def make_roster(world: Any, algorithm: Any, settings: Settings, room: int | None = None) -> Roster:
    """Make the roster of a run from a world, its algorithms and the settings.

    ``room``: the number of learner processes if ``learner_processes`` is not set; by default as many as this machine
    has cores for.
    """
    with streams_returned():
        return _make_roster(world_factory(world), algorithm, settings, room)


def fitted_world(factory: Callable[[], Any], algorithm: Any) -> Callable[[], Any]:
    """Return the world in the form that the algorithm plays in, if it names one (``plays_in``, an import path).

    The world at that path takes a factory of the given world as ``model``.
    """
    if isinstance(algorithm, Mapping):
        return factory
    path = getattr(algorithm_config(AgentSettings.of(algorithm).algorithm), "plays_in", None)
    if path is None:
        return factory
    wrapper, inner = import_named(path, "plays_in", []), factory
    while isinstance(inner, functools.partial):
        inner = inner.func
    fits = inner is wrapper or (isinstance(inner, type) and issubclass(inner, wrapper))
    return factory if fits else functools.partial(wrapper, model=factory)


def _make_roster(factory: Callable[[], Any], algorithm: Any, settings: Settings, room: int | None) -> Roster:
    Streams(StreamUser("the world")).begin(settings.seed)
    made = _made(factory)
    probe = as_world(made)
    probe.reset(settings.seed)
    groups = -(-len(probe.agents) // max(1, len(probe.group())))  # rounds in which each agent acts once
    everybody = _members(probe, settings)
    chosen = algorithm if isinstance(algorithm, Mapping) else dict.fromkeys(everybody, algorithm)
    if set(chosen) != set(everybody):
        raise SettingError(f"algorithm must be given for each of {list(everybody)}, got {sorted(chosen)}")
    given = {name: AgentSettings.of(one) for name, one in chosen.items()}
    partners = {name: partner for name in everybody if (partner := as_partner(given[name].algorithm)) is not None}
    members = {name: agents for name, agents in everybody.items() if name not in partners}
    _check_partners(partners, members, given, settings)
    masked, suggests = masked_agents(probe), suggestions(factory)
    configs = {name: algorithm_config(given[name].algorithm, suggests) for name in members}
    policies = [
        _policy(name, agents, probe, configs[name], given[name].own, not masked.isdisjoint(agents), settings)
        for name, agents in members.items()
    ]
    self_play = None
    if settings.self_play:
        (player,) = policies
        self_play = _self_play(made, probe, player, settings)
        policies = [replace(player, partitions=self_play.partitions(player.settings.once))]
    agents = _agents(probe, members, masked)
    fixed = fixed_policies(partners, probe, factory, masked) if partners else ()
    parts = _parts(len(policies), settings, local_room(settings) if room is None else room)
    policies = _placed(policies, parts, settings)
    stacks, processes = _stacks_first(policies, len(parts)) if settings.in_periods else _stacked(policies, parts)
    pace = _pace_in_periods(policies, settings, groups) if settings.in_periods else pace_of(policies, settings)
    probe.close()
    roster = Roster(
        world=Portable(factory, "world"),
        agents=agents,
        policies=tuple(policies),
        stacks=stacks,
        processes=processes,
        actors=settings.actors,
        worlds_per_actor=settings.worlds_per_actor,
        steps=settings.step_limit,
        episodes=settings.episodes,
        pace=pace,
        seed=settings.seed,
        sync_interval=settings.sync_interval,
        max_lag=MaxLag(settings.max_lag_versions, settings.max_lag_steps),
        checked=settings.checked,
        remake_worlds=settings.remake_worlds,
        self_play=self_play,
        partners=fixed,
        replay_directory=settings.replay_directory,
        staged=_staged(probe, policies),
        win_rule=WinRule.declared_by(made) if len(agents) == 2 else None,
        evaluate_every=(settings.evaluate_every or 0) if settings.in_periods else 0,
        exact=settings.in_periods and settings.keep_replay,
    )
    _check_in_periods(roster)
    return roster


def _staged(world: World, policies: Sequence[LearnedPolicy]) -> tuple[int, ...]:
    """Return the policies whose stages count for a world: the policy that the world names, or all with several
    stages."""
    staged = [
        i
        for i, policy in enumerate(policies)
        if len(policy.settings.stages.names) > 1 and "stage" in policy.config.header
    ]
    whose = getattr(world, "stage_of", None)
    if whose is None:
        return tuple(staged)
    if whose not in world.agents:
        raise SettingError(f"stage_of must be one of the agents {', '.join(world.agents)}, got {whose!r}")
    agent = world.agents.index(whose)
    named = tuple(i for i in staged if agent in policies[i].agents)
    if staged and not named:
        raise SettingError(f"stage_of must be an agent that learns with several stages, got {whose!r}")
    return named


def _check_partners(
    partners: Mapping[str, Any], members: Mapping[str, Any], given: Mapping[str, AgentSettings], settings: Settings
) -> None:
    for name in partners:
        if own := given[name].own:
            raise SettingError(f"{', '.join(own)} of {name}: only valid for agents that learn (got a partner)")
    if partners and settings.self_play:
        raise SettingError(
            f"partners are not valid in self-play (got one for {', '.join(partners)}): the league provides the "
            "opponents; fix: name the policy in league.anchors"
        )
    if not members:
        raise SettingError(
            f"at least one agent must learn, got partners for all of {', '.join(partners)}; fix: give one of them an "
            "algorithm, or use motet.evaluate"
        )


def _members(world: World, settings: Settings) -> dict[str, tuple[int, ...]]:
    """Indices of the agents of each policy, by name: one agent for each policy; in self-play the player has all
    agents."""
    if settings.self_play:
        return {PLAYER: tuple(range(len(world.agents)))}
    return {name: (i,) for i, name in enumerate(world.agents)}


def _agents(world: World, members: Mapping[str, Sequence[int]], masked: Collection[int]) -> tuple[AgentSpec, ...]:
    """The agents of the world with their policies. If one agent of a policy has masks, all its agents have."""
    policy_of = {agent: policy for policy, agents in enumerate(members.values()) for agent in agents}
    together = {agent: agents for agents in members.values() for agent in agents}
    has_mask = [any(other in masked for other in together.get(i, (i,))) for i in range(len(world.agents))]
    return tuple(
        AgentSpec(name, world.observation_spaces[i], world.action_spaces[i], policy_of.get(i), masked=has_mask[i])
        for i, name in enumerate(world.agents)
    )


def _policy(
    name: str,
    agents: tuple[int, ...],
    world: World,
    config: AlgorithmConfig,
    own: Mapping[str, Any],
    masked: bool,
    settings: Settings,
) -> LearnedPolicy:
    """Make the policy of some agents, which have equal spaces. ``own``: settings that replace those of the run."""
    spaces = world.observation_spaces[agents[0]], world.action_spaces[agents[0]]
    try:
        replay = config.replay(*spaces, masked=masked)
        sizes = Sizes(*map(operator.index, config.sizes(*spaces)))  # accepts numpy integers too
        start = start_row(own["start_from"], name, config, sizes, *spaces) if "start_from" in own else None
    except SettingError as error:
        raise SettingError(f"{name} with {type(config).__name__}: {error}") from error
    return LearnedPolicy(
        name,
        agents,
        *spaces,
        config,
        replay,
        sizes,
        masked,
        device=own.get("device", settings.device) or ("cuda" if settings.cluster.learner_gpus else "cpu"),
        slots=1 if own.get("publish", settings.publish) == "snapshot" else 2,
        publish_every=own.get("publish_every", settings.publish_every),
        start=start,
        own=own,
    )


def _self_play(made: Any, world: World, player: LearnedPolicy, settings: Settings) -> SelfPlay:
    """Resolve the settings of self-play; raise if the world does not allow it."""
    if len(world.agents) != 2:
        raise SettingError(f"self_play is only valid with two players (got the agents {list(world.agents)})")
    for what, spaces in (("observation", world.observation_spaces), ("action", world.action_spaces)):
        if spaces[0] != spaces[1]:
            raise SettingError(
                f"self_play is only valid with equal {what} spaces (got {spaces[0]} and {spaces[1]}): one policy "
                "plays both sides"
            )
    if player.settings.n_frames > 1:
        raise SettingError(
            f"n_frames must be 1 in self-play, got {player.settings.n_frames}; if the world suggests it, set n_frames "
            "to 1 (--ALGORITHM.n-frames 1)"
        )
    play = SelfPlay.of(
        made,
        settings.league,
        lambda path: import_named(path, "anchors", []),
        (player.observation_space, player.action_space),
    )
    if settings.evaluates and not play.anchors:
        name = "evaluate_every_s" if settings.evaluate_every is None else "evaluate_every"
        raise SettingError(
            f"{name} is only valid with anchors in self-play, since evaluations are games against anchors (got none)"
        )
    return play


def pace_of(policies: Sequence[LearnedPolicy], settings: Settings) -> Pace:
    """Derive the pace from the settings; raise if the policies cannot run at it."""
    ratio, slack = settings.updates_per_step, settings.slack
    once = [policy.name for policy in policies if policy.settings.once]
    if len(once) == len(policies) and ratio is not None:
        raise SettingError(
            f"updates_per_step must be None, got {ratio}: where rows are read once ({', '.join(once)}) there is one "
            "update for each batch"
        )
    if settings.engine == "serial":
        return Pace(1.0 if ratio is None else ratio, 0, 0)
    if once and ratio is None and len(once) < len(policies):
        raise SettingError(
            "updates_per_step must be a number, got None: learners would run freely, and where rows are read once "
            f"({', '.join(once)}) a full lane would stall the other agents"
        )
    if not once and ratio is None:
        if slack is not None:
            raise SettingError("slack is only valid with updates_per_step (got None)")
        return Pace()
    ahead = 1.0 if slack is None else slack
    if once and math.isinf(ahead):
        raise SettingError(
            f"slack must be a finite number, got {slack}: where rows are read once ({', '.join(once)}) a full "
            "lane would stall the other agents"
        )
    if len(once) == len(policies):
        return Pace(slack=ahead, slack_once=ahead)
    assert ratio is not None
    return Pace(ratio, max(32.0, ratio) if slack is None else slack, ahead if once else 1.0)


def _pace_in_periods(policies: Sequence[LearnedPolicy], settings: Settings, groups: int) -> Pace:
    """Derive the pace of a reproducible run.

    The period is the given one. By default it is the smallest in which each policy gets 8 updates, or one batch if rows
    are read once. ``groups``: number of rounds in which each agent acts once.
    """
    drawn = [policy.settings for policy in policies if not policy.settings.once]
    once = [policy.settings for policy in policies if policy.settings.once]
    if not drawn and settings.updates_per_step is not None:
        raise SettingError(
            f"updates_per_step must be None, got {settings.updates_per_step}: where rows are read once there is one "
            "update for each batch"
        )
    ratio, ahead = settings.updates_per_step or _RATIO, 1 if settings.ahead is None else settings.ahead
    worlds = settings.actors * settings.worlds_per_actor
    if settings.period is not None:
        return Pace(ratio, 0, 0, settings.period, ahead)
    rounds = [math.ceil(_UPDATES / (ratio * worlds))] if drawn else []
    rounds += [-(-reads.batch_size // worlds) * reads.length for reads in once]
    # At most half of a lane is written during a phase (_check_in_periods).
    most = [(-(-reads.capacity // worlds) // 2 - 1) // 2 for reads in drawn if ahead]
    return Pace(ratio, 0, 0, max(1, min([groups * max(rounds), *most])), ahead)


def _check_in_periods(roster: Roster) -> None:
    """Raise if the policies cannot be learned in periods, or if a setting needs periods and the run has none."""
    for i, policy in enumerate(roster.policies):
        rows = roster.replay_spec(i).lane_capacity
        if not policy.settings.once and roster.pace.room > rows // 2:
            raise SettingError(
                f"period must be such that at most half of a lane is written during a phase: {roster.pace.period} "
                f"rounds write up to {roster.pace.room} rows, and a lane of {policy.name} has {rows}; fix: a shorter "
                "period, a larger capacity or ahead=0"
            )
        if policy.device != "cpu" and roster.pace.period:
            raise SettingError(
                f"device must be 'cpu' with reproducible or period, got {policy.device!r} for {policy.name}: other "
                "devices do not promise the same bits"
            )
        if roster.pace.period and (policy.slots, policy.publish_every) != (2, Settings.publish_every):
            raise SettingError(
                f"publish and publish_every are not valid with reproducible or period (got one for {policy.name}): "
                "there is one version for each period"
            )
        if getattr(policy.config, "target_every", None) == "phase" and not roster.pace.period:
            raise SettingError(
                f"target_every='phase' is only valid with reproducible or period (got it for {policy.name})"
            )


def _made(factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except MotetError:
        raise
    except Exception as error:
        raise WorldError(f"the world could not be made: {type(error).__name__}: {error}") from error


def _parts(policies: int, settings: Settings, room: int) -> list[list[int]]:
    """Divide policies evenly among learner processes, by index."""
    wanted = settings.learner_processes or room
    if settings.learner_processes is not None and settings.learner_processes > policies:
        raise SettingError(f"learner_processes must be at most {policies}, one for each agent, got {wanted}")
    return [part.tolist() for part in np.array_split(np.arange(policies), min(wanted, policies))]


def _placed(
    policies: Sequence[LearnedPolicy], parts: Sequence[Sequence[int]], settings: Settings
) -> list[LearnedPolicy]:
    """Set the device of each policy; raise if there is no such device."""
    if all(policy.device == "cpu" for policy in policies):
        return list(policies)  # the default needs no check by torch
    if settings.engine == "ray":  # on a cluster, a process sees only the devices that Ray reserves for it
        gpus = math.ceil(settings.cluster.learner_gpus)
        if not gpus and any(policy.device.startswith("cuda") for policy in policies):
            raise SettingError(
                "device must be 'cpu' with cluster.learner_gpus=0, got 'cuda': Ray hides GPUs that are not reserved; "
                "fix: set cluster.learner_gpus"
            )
        found = ["cuda", *(f"cuda:{i}" for i in range(gpus))] if gpus else []
        turns = [0] * len(parts)
    else:
        found, turns = list(torch_found().devices), list(range(len(parts)))
    turn_of = {policy: turn for turn, part in zip(turns, parts, strict=True) for policy in part}
    return [replace(policy, device=placed(policy.device, turn_of[i], found)) for i, policy in enumerate(policies)]


def _stacked(
    policies: Sequence[LearnedPolicy], parts: Sequence[Sequence[int]]
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Form stacks of the policies of one kind in a process. Returns the stacks, and the stacks of each process."""
    stacks: list[tuple[int, ...]] = []
    processes: list[tuple[int, ...]] = []
    for members in parts:
        equal: dict[tuple[int | None, str], list[int]] = {}
        for i in members:
            # Rows that are read once set the pace: in a shared stack the policy with the fewest would delay the others.
            alone = i if policies[i].settings.once else None
            equal.setdefault((alone, policies[i].kind), []).append(i)
        processes.append(tuple(range(len(stacks), len(stacks) + len(equal))))
        stacks.extend(tuple(group) for group in equal.values())
    return tuple(stacks), tuple(processes)


def _stacks_first(
    policies: Sequence[LearnedPolicy], processes: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Form stacks of at most 8 equal policies, and divide them evenly among learner processes.

    So neither the stacks nor the result depend on the number of processes.
    """
    equal: dict[tuple[int | None, str], list[int]] = {}
    for i, policy in enumerate(policies):
        equal.setdefault((i if policy.settings.once else None, policy.kind), []).append(i)
    stacks = [tuple(group[at : at + _STACK]) for group in equal.values() for at in range(0, len(group), _STACK)]
    shares = np.array_split(np.arange(len(stacks)), min(processes, len(stacks)))
    return tuple(stacks), tuple(tuple(share.tolist()) for share in shares)


def local_room(settings: Settings) -> int:
    """Number of learner processes for which this machine has cores beside the actors."""
    return max(1, usable_cores() - settings.actors)
