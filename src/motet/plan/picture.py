"""Pictures of plans: values and policies drawn on the map of their world."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from motet.errors import SettingError
from motet.plan.graph import Graph
from motet.text import legible

if TYPE_CHECKING:
    from motet.plan.solution import Solution

__all__ = ["Panel", "on_the_world", "panels_of", "solution_picture", "state_picture"]

Panel = tuple[str, int, NDArray[np.float64], NDArray[np.float64] | None]
"""A title, an agent, a number for each state, and optionally the agent's policy [states, actions], drawn as arrows."""

_MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}  # (right, down)
_MOVES |= {"north": _MOVES["up"], "south": _MOVES["down"], "west": _MOVES["left"], "east": _MOVES["right"]}
_ZOOM = 3
_BAR = 10  # pixels of a bar of power


def _arrows(model: Any, actions: int) -> list[tuple[int, int]]:
    """Direction of each action on the map, (right, down): by its name; without names, up, down, left and right."""
    names = getattr(model, "action_names", ()) or (("up", "down", "left", "right") if actions == 4 else ())
    known = [_MOVES.get(str(name).lower(), (0, 0)) for name in names]
    return known if len(known) == actions else [(0, 0)] * actions


def on_the_world(
    model: Any,
    graph: Graph,
    visits: NDArray[np.float64],
    panels: Sequence[Panel],
    title: str,
    path: str | os.PathLike[str] | None = None,
    rows: int = 1,
) -> NDArray[np.uint8]:
    """Draw one map for each panel: for each tile, the mean over the visited states in which the agent is there.

    The panels fill ``rows`` rows one after the other. Panels below each other share their colours.
    """
    if not (hasattr(model, "picture") and hasattr(model, "where")):
        raise SettingError(
            "model must have picture(state) -> rgb and where(state, agent) -> (row, column) to be drawn, got a "
            f"{type(model).__name__}"
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ground = model.picture(graph.states[0])
    tall = 5.0 * ground.shape[0] / ground.shape[1] + 0.8
    height, width = _tiles(model, ground)
    across = len(panels) // rows
    figure = Figure(figsize=(6.0 * across, tall * rows), layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    figure.suptitle(title)
    heats = np.full((len(panels), height, width), np.nan)
    for heat, (_, agent, numbers, _) in zip(heats, panels, strict=True):
        down, right, mean = _by_tile(model, graph, visits, agent, numbers)
        heat[down, right] = mean
    for place, (heat, (name, agent, _, policy)) in enumerate(zip(heats, panels, strict=True)):
        axes = figure.add_subplot(rows, across, place + 1)
        axes.imshow(ground, extent=(-0.5, width - 0.5, height - 0.5, -0.5))
        shared = heats[place % across :: across]
        drawn = axes.imshow(
            np.ma.masked_invalid(heat), cmap="viridis", alpha=0.75, vmin=np.nanmin(shared), vmax=np.nanmax(shared)
        )
        bar = figure.colorbar(drawn, ax=axes, shrink=0.8)
        bar.ax.tick_params(labelsize=8)
        axes.set_title(name, fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
        if policy is not None:
            _draw_arrows(axes, model, graph, visits, agent, policy)
    canvas.draw()
    if path is not None:
        figure.savefig(path, dpi=120)
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _tiles(model: Any, ground: NDArray[np.uint8]) -> tuple[int, int]:
    size = getattr(model, "tile_pixels", 16)
    return ground.shape[0] // size, ground.shape[1] // size


def _by_tile(
    model: Any, graph: Graph, visits: NDArray[np.float64], agent: int, numbers: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Rows, columns and visit-weighted mean of the numbers, for all tiles that the agent visits."""
    seen = np.flatnonzero((visits > 0) & ~graph.terminal)
    spots = np.array([model.where(graph.states[i], agent) for i in seen.tolist()])
    tiles, tile = np.unique(spots, axis=0, return_inverse=True)
    weight = np.bincount(tile.reshape(-1), visits[seen], len(tiles))
    mean = np.bincount(tile.reshape(-1), visits[seen] * numbers[seen], len(tiles)) / weight
    return tiles[:, 0], tiles[:, 1], mean


def _draw_arrows(
    axes: Any, model: Any, graph: Graph, visits: NDArray[np.float64], agent: int, policy: NDArray[np.float64]
) -> None:
    for action, (right, down) in enumerate(_arrows(model, policy.shape[1])):
        if not (right or down):
            continue
        rows, columns, mean = _by_tile(model, graph, visits, agent, policy[:, action])
        strong = mean > 0.02
        axes.quiver(
            columns[strong],
            rows[strong],
            right * mean[strong] * 0.48,
            down * mean[strong] * 0.48,
            angles="xy",
            scale_units="xy",
            scale=1,
            color="white",
            edgecolor="black",
            linewidth=0.6,
            width=0.014,
        )


def solution_picture(solution: Solution, model: Any, path: str | os.PathLike[str] | None = None) -> NDArray[np.uint8]:
    """Maps of the humans' power by their position, and of the robot's value and policy by its position."""
    graph, arrays = solution.graph, solution.arrays
    panels = panels_of(graph, arrays["power"], arrays["robot_value"], arrays["robot_policy"])
    title = "Means over the states that the plan visits"
    return on_the_world(model, graph, solution.chain().visits(), panels, title, path)


def panels_of(
    graph: Graph, power: NDArray[np.float64], value: NDArray[np.float64], policy: NDArray[np.float64], prefix: str = ""
) -> list[Panel]:
    """Panels of the humans' power by their position, and of the robot's value and policy by its position.

    Args:
        graph: the states.
        power: X_h, [states, humans].
        value: V_r, [states].
        policy: pi_r, [states, robot actions].
        prefix: text at the beginning of the titles.
    """
    panels: list[Panel] = [
        (f"{prefix}power of {legible(graph.agents[human])}, by its position", human, power[:, position], None)
        for position, human in enumerate(graph.humans)
    ]
    for robot in graph.robots[:1]:
        sizes = [graph.actions[other] for other in graph.robots]
        rest = tuple(axis + 1 for axis, other in enumerate(graph.robots) if other != robot)
        own = policy.reshape(len(graph), *sizes)
        own = own.sum(axis=rest) if rest else own
        title = f"{prefix}{legible(graph.agents[robot])}: log(-V_r) and policy"
        panels.append((title, robot, np.log(-value), own))
    return panels


def state_picture(solution: Solution, model: Any, state: Any) -> NDArray[np.uint8]:
    """Draw one state, enlarged: arrows show the robots' policies, bars below show the humans' power in order.

    The longest arrow of a robot shows its most likely move. A full bar is the highest power in any state of the plan. A
    terminal state has no arrows, and its bars are empty.
    """
    picture: NDArray[np.uint8] = model.picture(state).repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)
    graph, tile = solution.graph, getattr(model, "tile_pixels", 16) * _ZOOM
    number = graph.number(state)
    if not graph.terminal[number] and hasattr(model, "where"):
        for robot in graph.robots:
            row, column = model.where(state, robot)
            shares = solution.policy(state, robot)
            for share, (right, down) in zip(shares, _arrows(model, len(shares)), strict=True):
                length = tile * 0.75 * share / shares.max()
                _draw_arrow(picture, ((column + 0.5) * tile, (row + 0.5) * tile), (right * length, down * length))
    power = solution.arrays["power"]
    bars = np.full((_BAR * len(graph.humans), picture.shape[1], 3), 246, np.uint8)
    for position in range(len(graph.humans)):
        filled = round(picture.shape[1] * float(power[number, position] / power[:, position].max()))
        bars[position * _BAR + 2 : (position + 1) * _BAR - 1, :filled] = (46, 110, 78)
    return np.concatenate([picture, bars])


def _draw_arrow(picture: NDArray[np.uint8], start: tuple[float, float], along: tuple[float, float]) -> None:
    """Draw an arrow, white with a dark rim, from a point (x, y) of the picture."""
    length = float(np.hypot(*along))
    if length < 2:
        return
    y, x = np.mgrid[: picture.shape[0], : picture.shape[1]]
    ahead = ((x - start[0]) * along[0] + (y - start[1]) * along[1]) / length
    aside = np.abs((x - start[0]) * along[1] - (y - start[1]) * along[0]) / length
    head = min(8.0, length)
    for rim, colour in ((1.5, 40), (0.0, 255)):
        shaft = (ahead >= -rim) & (ahead <= length - head) & (aside <= 1.5 + rim)
        point = (ahead >= length - head - rim) & (ahead <= length + rim) & (aside <= (length - ahead) * 0.7 + rim)
        picture[shaft | point] = colour
