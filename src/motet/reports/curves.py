"""Curves of groups of runs: means over the runs of a group with a band, and evaluations as dots with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from motet.reports.charts import Line
from motet.reports.groups import Group
from motet.runs.history import Array, RunHistory, Table, interval, thinned
from motet.text import label

__all__ = ["by_agent", "by_group", "column", "evaluated_by_agent", "evaluated_by_group", "is_constant", "over_agents"]

Pick = Callable[[RunHistory], tuple[Array, Array]]
Band = Callable[[Array], tuple[Array, Array, Array]]

_POINTS = 200  # points of a mean curve
_FAINT = 12  # maximum number of single runs drawn behind their mean


def column(agent: str | None, y: str, x: str = "steps", of: str = "curves", length: float = 1.0) -> Pick:
    """Return a function that picks a curve of a run: of the team or of an agent, over steps or time."""

    def pick(run: RunHistory) -> tuple[Array, Array]:
        curves = getattr(run, of)
        columns: Table = curves.team if agent is None else curves.agents.get(agent, {})
        xs = curves.team.get(x, np.zeros(0)) if x == "seconds" else columns.get(x, np.zeros(0))
        return (xs / length, columns[y]) if y in columns else (np.zeros(0), np.zeros(0))

    return pick


def over_agents(y: str) -> Pick:
    """Return a function that picks the mean over all agents of a run, over steps."""

    def pick(run: RunHistory) -> tuple[Array, Array]:
        known = [columns[y] for columns in run.curves.agents.values() if y in columns]
        return (run.curves.team["steps"], np.mean(known, axis=0)) if known else (np.zeros(0), np.zeros(0))

    return pick


def by_group(groups: Sequence[Group], pick: Pick, faint: bool = True, band: Band = interval) -> list[Line]:
    """Return a curve for each group that has data. ``faint``: also draw each run behind it."""
    found = (_mean(group.shown, pick, group.name, group.number, faint, band) for group in groups)
    return [line for line in found if line is not None]


def by_agent(group: Group, y: str, band: Band = interval) -> list[Line]:
    """Return a curve for each agent of a group."""
    faint = len(group.agents) == 1
    found = (_mean(group.shown, column(a, y), label(a), i, faint, band) for i, a in enumerate(group.agents))
    return [line for line in found if line is not None]


def _mean(
    runs: Sequence[RunHistory], pick: Pick, name: str, colour: int, faint: bool = False, band: Band = interval
) -> Line | None:
    """Return one curve for several runs: their mean over the steps that all of them reached, with a band."""
    curves = [curve for curve in (thinned(*pick(run)) for run in runs) if len(curve[0])]
    if not curves:
        return None
    if len(curves) == 1:
        (x, y) = curves[0]
        return Line(name, x.tolist(), y.tolist(), colour=colour)
    grid = np.linspace(min(x[0] for x, _ in curves), max(x[-1] for x, _ in curves), _POINTS)
    mean, low, high = band(np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in curves]))
    behind = [(x.tolist(), y.tolist()) for x, y in curves] if faint and len(curves) <= _FAINT else []
    return Line(name, grid.tolist(), mean.tolist(), low.tolist(), high.tolist(), colour=colour, behind=behind)


def is_constant(lines: Sequence[Line]) -> bool:
    """Return whether the curves have only one value, the same everywhere."""
    parts = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    values = np.concatenate([np.asarray(part, np.float64) for part in parts])
    return len(set(values[np.isfinite(values)].tolist())) == 1


# ---- evaluations


def evaluated_by_group(groups: Sequence[Group]) -> list[Line]:
    """Return the evaluations of the team for each group that has some: dots with intervals."""
    found = (_evaluated(group.shown, None, group.name, group.number) for group in groups)
    return [line for line in found if line is not None]


def evaluated_by_agent(group: Group) -> list[Line]:
    """Return the evaluations of each agent of a group: dots with intervals."""
    found = (_evaluated(group.shown, agent, label(agent), i) for i, agent in enumerate(group.agents))
    return [line for line in found if line is not None]


def _evaluated(runs: Sequence[RunHistory], agent: str | None, name: str, colour: int) -> Line | None:
    """Return the evaluations of several runs: their means, with intervals over runs; of a single run over its
    episodes."""
    mean, half = (column(agent, y, of="evaluations") for y in ("mean", "half"))
    found = [(run, thinned(*mean(run))) for run in runs]
    known = [(run, curve) for run, curve in found if len(curve[0])]
    if not known:
        return None
    line = Line(name, (), (), kind="dots", colour=colour)
    if len(known) == 1:
        run, (x, y) = known[0]
        xs, halves = half(run)
        error = np.interp(x, xs, halves) if len(xs) else np.full(len(x), np.nan)
        return replace(line, x=x.tolist(), y=y.tolist(), low=(y - error).tolist(), high=(y + error).tolist())
    steps, values = _aligned([curve for _, curve in known])
    middle, low, high = interval(values)
    return replace(line, x=steps.tolist(), y=middle.tolist(), low=low.tolist(), high=high.tolist())


def _aligned(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the steps at which all runs were evaluated, and the values by run.

    Runs are evaluated at nearly the same steps, not at exactly the same. Evaluations that are at most half the usual
    distance apart belong together.
    """
    steps, _ = min(curves, key=lambda curve: len(curve[0]))
    near = float(np.median(np.diff(steps))) / 2 if len(steps) > 1 else np.inf
    rows = []
    for x, y in curves:
        at = np.abs(x[None, :] - steps[:, None]).argmin(1)
        rows.append(np.where(np.abs(x[at] - steps) <= near, y[at], np.nan))
    values = np.stack(rows)
    common = np.isfinite(values).all(0)
    return steps[common], values[:, common]
