"""``motet plan``: enumerates the states of a model, solves it, prints a summary, and saves the solution if asked."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from motet.cluster.connect import connected
from motet.errors import SettingError
from motet.placement import Cluster
from motet.plan import Graph, Humans, Progress, Robot, best_response, enumerate_states, solve
from motet.plan.folder import check_target
from motet.system.imports import import_named
from motet.system.memory import format_bytes
from motet.text import label, nearest
from motet.world.model import optional_attribute

__all__ = ["plan"]

WORLDS = {
    "rooms": "motet.worlds.rooms:Rooms",
    "small_hunt": "motet.worlds.small_hunt:SmallHunt",
    "bushes": "motet.worlds.bushes:Bushes",
}


@dataclass(frozen=True)
class _HumanFlags(Humans):
    """How humans choose."""

    credit_achieved: bool = False
    """Deprecated name of --humans.achieved one."""

    def __post_init__(self) -> None:
        """Skip the checks of Humans: here False means that the flag was not given."""

    def checked(self) -> Humans:
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return Humans(**{**given, "credit_achieved": self.credit_achieved or None})


def plan(
    model: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="rooms|small_hunt|bushes|MODULE:FACTORY")]],
    map: str | None = None,
    horizon: int | None = None,
    human_agents: tuple[str, ...] | None = None,
    robot_agents: tuple[str, ...] | None = None,
    humans: _HumanFlags = _HumanFlags(),
    robot: Robot = Robot(),  # noqa: B008 - frozen
    workers: int | None = None,
    max_states: int = 10_000_000,
    dtype: Literal["float64", "float32", "float16"] = "float64",
    directory: Path | None = None,
    out: Path | None = None,
    engine: Literal["processes", "ray"] = "processes",
    address: str | None = None,
) -> int:
    """Solve a small world exactly: enumerate its states, then solve backwards for humans and robot, or for rewards.

    Args:
        model: The model: a shipped world, or a factory.
        map: Map of the world: a name, or a file.
        horizon: Number of steps in an episode. By default the horizon of the map.
        human_agents: The humans, by index or name. By default the humans that the model names.
        robot_agents: The robots, by index or name. By default the robots that the model names.
        humans: How humans choose.
        robot: How the robot chooses.
        workers: Maximum number of processes and threads. By default one per core. The result does not depend on it.
        max_states: Maximum number of states. More states are an error.
        dtype: Data type in which values are stored.
        directory: Existing folder on a disk: arrays are kept in files without a name there instead of memory, for plans
            that exceed the memory.
        out: Folder for the solution and its picture, or for the graph of states if the world has rewards but no goals.
        engine: Where the processes run: on this machine, or on a Ray cluster. The result is the same.
        address: Address of a running Ray cluster. By default Ray starts on this machine.
    """
    if address is not None and engine != "ray":
        raise SettingError(f"address is only valid with --engine ray (got --engine {engine})")
    choosing = humans.checked()
    made = _made(model, map, horizon)
    with contextlib.ExitStack() as stack:
        where: dict[str, Any] = {}
        if engine == "ray":  # one connection for enumerating and solving
            where = {"engine": "ray", "cluster": Cluster(address=address)}
            stack.enter_context(connected(where["cluster"], workers or 0))
        roles = {"human_agents": _agents(human_agents), "robot_agents": _agents(robot_agents)}
        return _planned(made, choosing, robot, roles, workers, max_states, dtype, directory, out, where)


def _planned(
    made: Any,
    humans: Humans,
    robot: Robot,
    roles: dict[str, Any],
    workers: int | None,
    max_states: int,
    dtype: Literal["float64", "float32", "float16"],
    directory: Path | None,
    out: Path | None,
    where: dict[str, Any],
) -> int:
    if out is not None:
        check_target(out)  # checked before the work, not after it
    report = _Reporter()
    began = time.perf_counter()
    goals = _goals(made, roles)
    graph = enumerate_states(
        made, workers=workers, max_states=max_states, rewards=goals is None, directory=directory,
        progress=report.progress, on_message=report.say, **where,
    )  # fmt: skip
    enumerated = time.perf_counter()
    if goals is None:
        report.end()
        _summary(graph, {"enumerate": enumerated - began}, graph.nbytes)
        for name in graph.agents:
            value = best_response(graph, name, workers=workers, **where).value[0]
            sys.stdout.write(f"best response of {label(name)} to uniformly random others, at the start: {value:.6g}\n")
        if out is not None:
            graph.save(out)
            sys.stdout.write(
                f"graph saved in {out}: states, transitions and rewards, for Graph.load, best_response and regret of "
                "motet.plan; it is not a policy\n"
            )
        return 0
    solution = solve(
        graph,
        goals(_humans(graph, roles)),
        humans,
        robot,
        **roles,
        dtype=dtype,
        directory=directory,
        workers=workers,
        progress=report.progress,
        on_message=report.say,
        **where,
    )
    solved = time.perf_counter()
    report.end()
    seconds = {"enumerate": enumerated - began, "solve": solved - enumerated}
    graph = solution.graph
    _summary(graph, seconds, graph.nbytes + solution.nbytes, solution.described_convention)
    start = graph.states[0]
    for human in graph.humans:
        sys.stdout.write(f"power of {label(graph.agents[human])} at the start: {solution.power(start, human):.4g}\n")
    for agent in graph.robots:
        shares = _shares(made, solution.policy(start, agent))
        sys.stdout.write(f"{label(graph.agents[agent])} at the start: {shares}\n")
    if out is not None:
        solution.save(out)
        sys.stdout.write(f"saved in {out}\n")
        if hasattr(made, "picture"):
            from motet.plan.picture import solution_picture

            solution_picture(solution, made, out / "plan.png")
            sys.stdout.write(f"picture saved in {out / 'plan.png'}\n")
    return 0


def _goals(made: Any, roles: dict[str, Any]) -> Callable[[Sequence[int]], Any] | None:
    """A function from the humans to their goals; None: solve for rewards."""
    goals, generator = (optional_attribute(made, name) for name in ("goals", "possible_goal_generator"))
    kind, rewards = type(made).__name__, hasattr(made, "transition_rewards")
    if goals is None and generator is None:
        if not rewards:
            raise SettingError(
                "model must have goals(human) or possible_goal_generator, to be solved for humans and a robot, or "
                f"transition_rewards, for best responses, got a {kind} with none of them"
            )
        if any(given is not None for given in roles.values()):
            raise SettingError(
                "human_agents and robot_agents are only valid for a model with goals(human) or "
                f"possible_goal_generator, got a {kind} with neither"
            )
        return None
    if roles["human_agents"] is None and optional_attribute(made, "human_agent_indices") is None:
        if rewards:
            return None
        raise SettingError(
            f"model must have human_agent_indices and robot_agent_indices, got a {kind} with goals but without them: "
            "give --human-agents and --robot-agents"
        )
    if callable(goals):
        return lambda humans: {human: goals(human) for human in humans}
    return lambda humans: generator if goals is None else goals


def _humans(graph: Graph, roles: dict[str, Any]) -> list[int]:
    if roles["human_agents"] is not None:
        return [graph.agent(agent) for agent in roles["human_agents"]]
    robots = [graph.agent(agent) for agent in roles["robot_agents"] or ()]
    return [human for human in graph.humans if human not in robots]


def _agents(given: tuple[str, ...] | None) -> list[int | str] | None:
    """Agents by index or name."""
    return None if given is None else [int(agent) if agent.isdecimal() else agent for agent in given]


def _made(model: str, map: str | None, horizon: int | None) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # users' modules are in the current directory
    path = WORLDS.get(model, model)
    if ":" not in path:
        near = nearest(model, WORLDS)
        meant = f"; did you mean {near}?" if near else ""
        raise SettingError(f"model must be one of {', '.join(WORLDS)}, or 'module:factory', got {model!r}{meant}")
    factory: Callable[..., Any] = import_named(path, "model", list(WORLDS))
    settings: dict[str, Any] = {}
    if map is not None:
        settings["map"] = _text_of(map)
    if horizon is not None:
        settings["turns" if model == "small_hunt" else "horizon"] = horizon
    try:
        return factory(**settings)
    except SettingError as error:
        if map is None or settings["map"] == map:
            raise
        why = str(error).partition("\n")[0].rstrip(":")  # leaves out the contents of the file, which may be long
        raise SettingError(f"{why} (the map was read from the file {map!r})") from error
    except TypeError as error:
        if not settings:
            raise
        raise SettingError(f"model: {model!r} does not take {', '.join(settings)}: {error}") from error


def _text_of(map: str) -> str:
    """The contents of the file with this name, or the name itself if there is no such file."""
    try:
        return Path(map).read_text() if Path(map).is_file() else map
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"map must be a name or a readable file, got {map!r}: {error}") from error


def _shares(made: Any, shares: Any) -> str:
    """The probability of each action, with the model's name of the action or else its number."""
    names = getattr(made, "action_names", ())
    titles = names if len(names) == len(shares) else [f"action {i}" for i in range(len(shares))]
    return ", ".join(f"{label(str(title))} {share:.1%}" for title, share in zip(titles, shares, strict=True))


def _summary(graph: Graph, seconds: dict[str, float], nbytes: int, convention: str | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("states", f"{len(graph):,}")
    table.add_row("transitions", f"{len(graph.successor):,}")
    table.add_row("joint actions", f"{graph.joints:,}")
    table.add_row("levels", "-" if graph.levels is None else f"{len(graph.levels) - 1:,}")
    if convention is not None:
        table.add_row("achieved goals", convention)
    table.add_row("bytes", format_bytes(nbytes))
    for phase, took in seconds.items():
        table.add_row(f"{phase} s", f"{took:.2f}")
    Console(file=sys.stdout).print(table)


class _Reporter:
    """Show progress on standard error: one line that is overwritten on a terminal, else a line every few seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every_s = 0.1 if self._terminal else 5.0
        self._told, self._phase = time.monotonic(), ""

    def progress(self, at: Progress) -> None:
        now = time.monotonic()
        if at.phase == self._phase and now - self._told < self._every_s:
            return
        self._told, self._phase = now, at.phase
        found = f"{at.done:,} of {at.total:,} states"
        if at.phase == "enumerate":
            found = f"{at.total:,} states found, {at.total - at.done:,} in the frontier"
        line = f"{at.phase}: {found}, {at.rate:,.0f} states/s"
        sys.stderr.write(f"\r\033[K{line}" if self._terminal else line + "\n")
        sys.stderr.flush()

    def say(self, line: str) -> None:
        self.end()
        sys.stderr.write(line + "\n")

    def end(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\033[K")
