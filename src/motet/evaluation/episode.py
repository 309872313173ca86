"""Play single episodes: one world and the policies on its seats. This is all that a worker process runs.

An :class:`EpisodePlan` holds what all episodes have in common, a :class:`Task` describes one episode, and a
:class:`Played` is its result. The plan's seed and the task's key determine every random draw: the seeds of the world,
of each policy and of each stand-in are derived from them. So the result does not depend on which worker plays the
episode, when, or after which other episodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from motet.errors import MemoryShortError, PolicyFailure, StartError, WorldError
from motet.evaluation.latency import LatencyHistogram
from motet.isolation.players import Isolation, Player, Seats, check_mask, make_player
from motet.isolation.usage import PolicyUsage, limits_of
from motet.masks import mask_form
from motet.policies.entries import Entry
from motet.policies.joint import joint_question, joint_spaces
from motet.policies.local import LocalPolicy
from motet.policies.scripted import Noop
from motet.policies.teams import describe_world
from motet.policy import Policy, RandomPolicy, WorldDescription
from motet.seeds import seed_for
from motet.streams import Streams, StreamUser, made_alike
from motet.system.raised import DETAIL, describe, pressed_by_user, printable, summary
from motet.system.supervisor import RestartLimits
from motet.text import valid
from motet.world import World, as_world
from motet.world.film import Film, frames_per_s, made_to_draw, score_line
from motet.world.masks import masked_agents
from motet.world.winning import WonBy

if TYPE_CHECKING:
    from motet.policies.limits import PolicyLimits

__all__ = ["Arena", "EpisodePlan", "Failure", "Played", "Task", "seat_groups"]

_WORLD, _POLICY, _STAND_IN = 21, 22, 23  # constants from which the seeds of different purposes are derived
StandIn = Literal["noop", "random", "forfeit"]
FailedBy = Literal["", "world", "job"]
"""Cause of a failed episode: its world raised, or its job ended or hung. Empty if the episode did not fail."""


@dataclass(frozen=True)
class EpisodePlan:
    """The common part of all episodes. It is pickled and sent to the workers."""

    world: Callable[[], Any]
    """Factory of the world."""
    settings: Mapping[str, Any]
    """Settings of the world, as policies see them."""
    entries: tuple[Entry, ...]
    isolated: tuple[bool, ...]
    """By entry: whether the policy runs in a separate process."""
    seed: int = 0
    stand_in: StandIn = "noop"
    """Policy that replaces a failed one until the end of the episode. With "forfeit" the episode ends there."""
    limits: PolicyLimits | None = None
    """Limits of isolated policies. None: the defaults."""
    sandbox: Literal["no", "best-effort", "strict"] = "no"
    processes: int = 64
    """Maximum number of policy processes that one worker keeps."""
    sharing: bool = False
    """Whether the seats of one isolated policy share a process."""
    pooled: bool = True
    """Whether policies are kept between episodes and reset, instead of made again."""
    won_by: WonBy | None = None
    """Which rewards decide who wins. None: the world declares no rule, and ``Played.deciding`` is empty."""
    fall_back: bool = False
    """Whether a policy is played in the worker if its process cannot be started."""

    @property
    def patience_s(self) -> float:
        """Seconds that a policy process may stay silent: 12 times its longest limit, since the machine may be busy."""
        if not any(self.isolated):
            return 0.0
        from motet.policies.limits import PolicyLimits

        limits = self.limits or PolicyLimits()
        return 12 * max(limits.start_s, limits.reset_s, limits.decision_s)


@dataclass(frozen=True)
class Task:
    """One episode."""

    number: int
    seats: tuple[int, ...]
    """For each agent, the index of the entry (policy) that plays it."""
    key: tuple[int, ...]
    """Key from which the seeds are derived, together with the plan's seed."""
    out: tuple[int, ...] = ()
    """Disqualified entries. Stand-ins act for them from the start."""
    film: bool = False
    """Whether to render the episode."""


@dataclass(frozen=True)
class Failure:
    """A failure of a policy in an episode."""

    episode: int
    turn: int
    """Number of completed turns before the failure; 0 is before the first turn."""
    policy: str
    agents: tuple[str, ...]
    """Agents that the policy acted for."""
    cause: str
    """Kind of failure: one of the causes of :class:`motet.errors.PolicyFailure`."""
    detail: str = field(default="", compare=False)
    """Human-readable description; may differ between runs."""
    output: str = field(default="", compare=False)
    """The last part of the policy's output."""


@dataclass
class Played:
    """Result of an episode."""

    number: int
    seats: tuple[int, ...]
    out: tuple[int, ...]
    returns: tuple[float, ...]
    """Return by agent. Empty if the episode failed."""
    decisions: tuple[int, ...]
    """Number of decisions by agent. Empty if the episode failed."""
    turns: int
    failures: tuple[Failure, ...] = ()
    segments: tuple[int, ...] = ()
    """Number of segments by agent. Empty if no agent had more than one."""
    forfeited: tuple[int, ...] = ()
    """Entries that forfeited. The episode ended there."""
    latency: dict[int, LatencyHistogram] = field(default_factory=dict)
    """Decision latency by entry."""
    seconds: float = 0.0
    frames: tuple[bytes, ...] = ()
    """PNG images, if the episode was rendered."""
    captions: tuple[str, ...] = ()
    """The turn and the scores of each image."""
    frames_per_s: float = 0.0
    undrawn: str = ""
    """Why a requested rendering failed."""
    output: dict[int, str] = field(default_factory=dict)
    """The last part of the policy's output, by entry."""
    usage: dict[int, PolicyUsage] = field(default_factory=dict)
    """Resources that the processes of isolated policies have used since the last episode of this worker, by entry."""
    noticed: str = ""
    """Human-readable description of limits of the worker that a policy has changed."""
    fell_back: tuple[int, ...] = ()
    """Entries that were played in the worker because a process could not be started."""
    failed: FailedBy = ""
    """Cause of a failed episode; empty if it did not fail. A failed episode counts for no policy."""
    detail: str = ""
    """Human-readable description of the failure; may differ between runs."""
    deciding: tuple[float, ...] = ()
    """The score that decides who wins, by agent. Empty if the episode failed or the world declares no rule."""

    @classmethod
    def void(cls, task: Task, failed: FailedBy, detail: str, turns: int = 0, **more: Any) -> Played:
        """Return the result of a failed episode, which counts for no policy."""
        return cls(task.number, task.seats, task.out, (), (), turns, failed=failed, detail=detail, **more)


@dataclass(frozen=True)
class SeatGroup:
    """The seats of one player."""

    entry: int
    agents: tuple[int, ...]
    joint: bool


def seat_groups(plan: EpisodePlan, task: Task) -> list[SeatGroup]:
    """Return the groups of seats that share a player, in the order of the agents."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for agent, number in enumerate(task.seats):
        if number in task.out:
            continue
        entry = plan.entries[number]
        together = entry.shared or (plan.sharing and plan.isolated[number])
        # One policy with several fixed seats is several entries with the same key.
        found.setdefault((entry.key or number,) if together else (number, agent), []).append(agent)
    return [SeatGroup(task.seats[agents[0]], tuple(agents), len(key) == 1) for key, agents in found.items()]


class _MachineryError(Exception):
    """Raised for an error that neither the world nor a policy has caused. ``__cause__`` is that error."""


class Arena:
    """A world and the policies that are kept between episodes.

    A world that raised is not used again. The next episode gets a new world and new policies, since the old policies
    may still have a request whose answer was never read.
    """

    _world: World
    """The world made last. It provides the agents and their spaces."""

    def __init__(self, plan: EpisodePlan, heartbeat: Callable[[int], None] = lambda turn: None) -> None:
        self._plan, self.heartbeat = plan, heartbeat
        # by whether the world renders: the world, and its frames per second
        self._worlds: dict[bool, tuple[World, float]] = {}
        self.streams = Streams(StreamUser("the world"))
        """The global random streams of the world that plays."""
        self._unable = ""  # the reason, if a world that renders could not be created
        self._masked: frozenset[int] | None = None
        self._description: WorldDescription | None = None
        self._players: dict[SeatGroup, Player] = {}  # least recently used first
        self._joint_spaces: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._limits = limits_of()
        try:
            self._made(film=False)
        except BaseException as error:  # the first episode raises the error again and reports it
            if pressed_by_user(error):
                raise

    def close(self) -> None:
        """Close all players and worlds."""
        self._close_players()
        while self._worlds:
            self._worlds.popitem()[1][0].close()

    def _close_players(self) -> None:
        while self._players:
            self._players.popitem()[1].close()

    def play(self, task: Task) -> Played:
        """Play one episode. If the world raises, the result is a failed episode."""
        film, rate = Film() if task.film else None, 0.0
        run: _EpisodeRun | None = None
        try:
            world, rate = self._made(task.film)
            film = Film(self._unable) if film else None
            run = _EpisodeRun(self, world, task, film)
            return replace(run.play(), frames_per_s=rate)
        except _MachineryError as problem:
            assert problem.__cause__ is not None
            raise problem.__cause__ from None
        except BaseException as error:
            if pressed_by_user(error):
                raise
            self._close_players()
            detail = _where_it_raised(error) + self._discard(task.film)
            drawn = {"frames": film.pictures(), "captions": film.captions()} if film else {}
            return Played.void(task, "world", detail, run._turn if run else 0, **drawn, frames_per_s=rate)

    # ---- worlds

    def _made(self, film: bool) -> tuple[World, float]:
        """Return the world and its frames per second."""
        if self._masked is None:
            self._masked = self._find_masked()
        return self._make_world(film)

    def _make_world(self, film: bool) -> tuple[World, float]:
        if film not in self._worlds:
            self.heartbeat(0)
            world = self._plan.world

            def make() -> tuple[Any, str, World]:
                env, unable = made_to_draw(world) if film else (world(), self._unable)
                return env, unable, as_world(env)

            env, self._unable, self._world = made_alike("the world", make)
            self._description = describe_world(self._world, self._plan.settings)
            self._worlds[film] = self._world, frames_per_s(env)
            self.heartbeat(0)
        return self._worlds[film]

    def _find_masked(self) -> frozenset[int]:
        """Play to find out which agents have action masks. If the world raises, return all agents that might have
        one."""
        world, _ = self._make_world(film=False)
        try:
            for space in world.action_spaces:
                space.seed(0)  # the same actions in every job
            self.streams.begin(0)
            world.reset(0)
            return frozenset(masked_agents(world))
        except BaseException as error:  # if the error happens in an episode too, the episode reports it
            if pressed_by_user(error):
                raise
            self._discard(film=False)
            spaces = enumerate(world.action_spaces)
            return frozenset(i for i, space in spaces if mask_form(space).size)

    def _discard(self, film: bool) -> str:
        """Close a world that raised. Return a text if closing raised too, else an empty string."""
        world, _ = self._worlds.pop(film, (None, 0.0))
        try:
            if world is not None:
                world.close()
        except BaseException as error:
            if pressed_by_user(error):
                raise
            return f"\nclosing the world raised {summary(error)}"
        return ""

    # ---- players

    def player(self, seat_group: SeatGroup) -> Player:
        """Return the player for a group of seats. May raise a PolicyFailure."""
        if seat_group in self._players:
            self._players[seat_group] = self._players.pop(seat_group)
            return self._players[seat_group]
        if self._plan.isolated[seat_group.entry]:
            own = [other for other in self._players if self._plan.isolated[other.entry]]
            while len(own) >= self._plan.processes:
                self._players.pop(own.pop(0)).close()
        try:
            player = self._make_patiently(seat_group)
        except PolicyFailure:
            raise
        except Exception as error:
            raise _MachineryError from error
        self._players[seat_group] = player
        return player

    def fell_back(self, seat_group: SeatGroup) -> bool:
        """Whether the player of these seats is in this process because a separate one could not be started."""
        return self._plan.isolated[seat_group.entry] and isinstance(self._players.get(seat_group), LocalPolicy)

    def _make_patiently(self, seat_group: SeatGroup) -> Player:
        """Make a player. If the system refuses to start its process, try again after pauses, as often as training
        does."""
        if not self._plan.isolated[seat_group.entry]:
            return self._make(seat_group, False)
        limits, refused = RestartLimits(), ""
        for attempt in range(limits.restarts):
            try:
                return self._make(seat_group, True)
            except (StartError, MemoryShortError) as error:
                refused = str(error)
            time.sleep(limits.pause_s(attempt))
            self.heartbeat(0)
        if self._plan.fall_back:
            return self._make(seat_group, False)
        raise PolicyFailure("start", printable(refused)[:DETAIL])

    def _make(self, seat_group: SeatGroup, isolated: bool) -> Player:
        plan, world, agents = self._plan, self._world, seat_group.agents
        named = {world.agents[agent]: agent for agent in agents}
        seats = Seats.of(world, named, self._masked or (), seat_group.joint, plan.settings, self._description)
        entry = plan.entries[seat_group.entry]
        sandbox = entry.sandbox if plan.sandbox == "no" else plan.sandbox
        isolation = Isolation(plan.limits or entry.limits, sandbox) if isolated else None
        spaces = self.spaces(seat_group) if seat_group.joint else None
        return make_player(entry, seats, isolation, spaces)

    def spaces(self, seat_group: SeatGroup) -> tuple[Any, Any]:
        """Return the joint spaces of several seats."""
        if seat_group.agents not in self._joint_spaces:
            world = self._world
            self._joint_spaces[seat_group.agents] = joint_spaces(
                [world.agents[agent] for agent in seat_group.agents],
                [world.observation_spaces[agent] for agent in seat_group.agents],
                [world.action_spaces[agent] for agent in seat_group.agents],
                [agent in (self._masked or ()) for agent in seat_group.agents],
            )
        return self._joint_spaces[seat_group.agents]

    def take_usage(self) -> dict[int, PolicyUsage]:
        """Return the resources that the processes of isolated policies have used since the last call, by entry."""
        found: dict[int, PolicyUsage] = {}
        for seat_group, player in self._players.items():
            if self._plan.isolated[seat_group.entry] and not isinstance(player, LocalPolicy):
                found.setdefault(seat_group.entry, PolicyUsage()).merge(player.take_usage())  # type: ignore[attr-defined]
        return found

    def changed_limits(self) -> str:
        """Return the limits of this process that were changed since the last call, as text; empty if none were."""
        before, self._limits = self._limits, limits_of()
        pairs = zip(before.splitlines(), self._limits.splitlines(), strict=False)
        return "; ".join(f"{_limit(old)} to {_limit(new).rpartition(': ')[2]}" for old, new in pairs if old != new)

    def after_failure(self, seat_group: SeatGroup) -> None:
        """Replace a player that failed."""
        player = self._players.get(seat_group)
        if player is None:
            return
        try:
            player.replace()
        # at its next use the player is created again, and the failure is reported
        except (PolicyFailure, StartError, MemoryShortError):
            self._players.pop(seat_group).close()
        except Exception as error:
            raise _MachineryError from error

    def after_episode(self) -> None:
        """Close the players unless the plan keeps them."""
        if not self._plan.pooled:
            try:
                self._close_players()
            except Exception as error:
                raise _MachineryError from error


class _EpisodeRun:
    """The state of one episode while it is played."""

    def __init__(self, arena: Arena, world: World, task: Task, film: Film | None) -> None:
        self._arena, self._world, self._task, self._film = arena, world, task, film
        self._plan, self._streams = arena._plan, arena.streams
        self._seat_groups = seat_groups(self._plan, task)
        self._of = {agent: seat_group for seat_group in self._seat_groups for agent in seat_group.agents}
        self._players: dict[SeatGroup, Player] = {}
        self._stand_ins: dict[int, Policy] = {}
        self._failures: list[Failure] = []
        self._forfeited: list[int] = []
        self._latency: dict[int, LatencyHistogram] = {}
        self._output: dict[int, str] = {}
        self._decisions = [0] * len(world.agents)
        self._segments = [1] * len(world.agents)
        self._ended: set[int] = set()  # agents whose last segment is over
        self._earned = [0.0] * len(world.agents)  # rewards that were read before the end of the episode
        self._final = [0.0] * len(world.agents)  # rewards with which segments ended, if they decide who wins
        self._turn = 0
        if film is not None:
            film.caption = self._caption

    def _caption(self) -> str:
        """Return the turn and the scores so far."""
        unread = [self._world.unread_reward(agent) for agent in range(len(self._earned))]
        scores = [None if more is None else more + earned for more, earned in zip(unread, self._earned, strict=True)]
        return score_line(f"turn {self._turn}", self._world.agents, scores)

    def play(self) -> Played:
        began = time.perf_counter()
        plan, task, world = self._plan, self._task, self._world
        seed = seed_for(plan.seed, _WORLD, *task.key)
        self._streams.begin(seed)
        world.reset(seed)
        if plan.stand_in == "forfeit" and (absent := set(task.out) & set(task.seats)):
            self._forfeited = sorted(absent)
        else:
            self._begin()
            self._run()
        self._streams.enter()
        returns = tuple(
            float(world.reward(agent)) + earned if earned else float(world.reward(agent))
            for agent, earned in enumerate(self._earned)
        )
        for seat_group, player in self._players.items():
            self._keep_output(seat_group, player)
        self._fell_back = tuple(sorted({seats.entry for seats in self._seat_groups if self._arena.fell_back(seats)}))
        usage = self._arena.take_usage()
        self._arena.after_episode()
        return Played(
            number=task.number,
            seats=task.seats,
            out=task.out,
            returns=returns,
            deciding=tuple(self._final) if plan.won_by == "end" else returns if plan.won_by else (),
            decisions=tuple(self._decisions),
            turns=self._turn,
            failures=tuple(self._failures),
            segments=tuple(self._segments) if max(self._segments) > 1 else (),
            forfeited=tuple(self._forfeited),
            latency=self._latency,
            seconds=time.perf_counter() - began,
            frames=self._film.pictures() if self._film else (),
            captions=self._film.captions() if self._film else (),
            undrawn=self._film.problem if self._film else "",
            output=self._output,
            fell_back=self._fell_back,
            usage=usage,
            noticed=self._arena.changed_limits(),
        )

    def _begin(self) -> None:
        """Ask all policies to reset, then await each answer, so that they reset in parallel."""
        base = seed_for(self._plan.seed, _POLICY, *self._task.key)
        asked = []
        for seat_group in self._seat_groups:
            seed = base if seat_group.joint else seed_for(base, seat_group.agents[0])
            try:
                player = self._arena.player(seat_group)
                player.ask_reset(seed)
            except PolicyFailure as failure:
                self._fail(seat_group, failure)
                continue
            self._players[seat_group] = player
            asked.append(seat_group)
        self._await_resets(asked)

    def _await_resets(self, asked: Sequence[SeatGroup]) -> None:
        for seat_group in asked:
            self._arena.heartbeat(self._turn)
            try:
                self._players[seat_group].answer()
            except PolicyFailure as failure:
                self._fail(seat_group, failure)

    def _run(self) -> None:
        world, film = self._world, self._film
        self._streams.enter()
        by_end = self._plan.won_by == "end"  # the last reward counts separately, so rewards are read in every turn
        if film:
            film.capture(world)
        while not self._forfeited and (group := tuple(world.group())):
            self._begin_segments(group)
            if by_end:
                for agent in group:
                    self._earned[agent] += float(world.reward(agent))
            actions = self._decide(group)
            if actions is None:
                return
            self._streams.enter()
            world.act(actions)
            for end in world.ended():
                self._ended.add(end.agent)
                reward = float(world.reward(end.agent)) if by_end and end.reward is None else end.reward or 0.0
                self._earned[end.agent] += reward
                if by_end:
                    self._final[end.agent] += reward
            self._turn += 1
            self._arena.heartbeat(self._turn)
            if film:
                film.capture(world, group)

    def _begin_segments(self, group: Sequence[int]) -> None:
        """Reset the policies of agents that act again after the end of a segment, as in training.

        A player with several agents is not reset, because its other agents are in the middle of their segments.
        """
        base = seed_for(self._plan.seed, _POLICY, *self._task.key)
        asked = []
        for agent in self._ended.intersection(group):
            self._ended.remove(agent)
            seed = seed_for(base, agent, self._segments[agent])
            self._segments[agent] += 1
            seat_group = self._of.get(agent)
            if seat_group is not None and seat_group in self._players and not seat_group.joint:
                self._players[seat_group].ask_reset(seed)
                asked.append(seat_group)
        self._await_resets(asked)

    def _decide(self, group: Sequence[int]) -> list[Any] | None:
        """Return an action for each agent of the group, or None after a forfeit. All policies are asked before one is
        awaited."""
        world, joint = self._world, dict[SeatGroup, list[int]]()
        self._streams.enter()
        masks = {agent: world.mask(agent) for agent in group}
        asked: list[tuple[SeatGroup, list[int], float]] = []
        for agent in group:
            self._decisions[agent] += 1
            seat_group = self._of.get(agent)
            if seat_group is None or seat_group not in self._players:
                continue
            if seat_group.joint:
                joint.setdefault(seat_group, []).append(agent)
                continue
            asked.append((seat_group, [agent], time.perf_counter()))
            self._players[seat_group].ask(world.observe(agent), masks[agent])
        for seat_group, agents in joint.items():
            names = world.agents
            seen = {names[agent]: world.observe(agent) for agent in agents}
            given = {
                names[agent]: mask_form(world.action_spaces[agent]).flat(mask)
                for agent in agents
                if (mask := masks[agent]) is not None
            }
            observation_space, _ = self._arena.spaces(seat_group)
            question = joint_question([names[a] for a in seat_group.agents], observation_space, seen, given)
            asked.append((seat_group, agents, time.perf_counter()))
            self._players[seat_group].ask(question)
        answers: dict[int, Any] = {}
        for seat_group, agents, since in asked:
            self._arena.heartbeat(self._turn)
            try:
                answer = self._players[seat_group].answer()
                took = time.perf_counter() - since
                for agent in agents:
                    own = answer[world.agents[agent]] if seat_group.joint else answer
                    check_mask(own, masks[agent], world.action_spaces[agent])
                    answers[agent] = own
            except PolicyFailure as failure:
                for agent in agents:
                    answers.pop(agent, None)
                self._fail(seat_group, failure)
                continue
            self._latency.setdefault(seat_group.entry, LatencyHistogram()).add(took)
        if self._forfeited:
            return None
        return [
            answers[agent] if agent in answers else self._stand_in(agent).act(None, masks[agent]) for agent in group
        ]

    def _stand_in(self, agent: int) -> Policy:
        if agent not in self._stand_ins:
            space = self._world.action_spaces[agent]
            policy: Policy = RandomPolicy(space) if self._plan.stand_in == "random" else Noop(space)
            policy.reset(seed_for(self._plan.seed, _STAND_IN, *self._task.key, agent))
            self._stand_ins[agent] = policy
        return self._stand_ins[agent]

    def _fail(self, seat_group: SeatGroup, failure: PolicyFailure) -> None:
        entry, names = (
            self._plan.entries[seat_group.entry],
            tuple(self._world.agents[agent] for agent in seat_group.agents),
        )
        player = self._players.pop(seat_group, None)
        output = ""
        if player is not None:
            output = player.output
            self._keep_output(seat_group, player)
        self._failures.append(
            Failure(
                self._task.number,
                self._turn,
                entry.title,
                names,
                failure.cause,
                valid(failure.detail),
                valid(output),
            )
        )
        self._arena.after_failure(seat_group)
        if self._plan.stand_in == "forfeit":
            self._forfeited.append(seat_group.entry)

    def _keep_output(self, seat_group: SeatGroup, player: Player) -> None:
        if player.output:
            self._output[seat_group.entry] = valid(player.output)


def _limit(line: str) -> str:
    """Return the name and the soft limit in a line of a process's limits.

    >>> _limit("Max open files            1024                 4096                 files     ")
    'open files: 1024'
    """
    name, soft, *_ = [part for part in line.split("  ") if part]
    return f"{name.strip().removeprefix('Max ')}: {soft.strip()}"


def _where_it_raised(error: BaseException) -> str:
    """Return one line with the error of a world, then the lines of its traceback in the user's code."""
    root, seen = error, {id(error)}
    # "raise error from error" creates a circular chain
    while root.__cause__ is not None and id(root.__cause__) not in seen:
        root = root.__cause__
        seen.add(id(root))
    what = printable(str(error)) if isinstance(error, WorldError) else summary(error)
    return f"{what}\n{describe(root, but=__file__).partition(chr(10))[2]}"[:DETAIL].strip()
