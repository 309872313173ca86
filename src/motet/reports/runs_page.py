"""The HTML page of a report. It takes groups of runs and returns the page, section by section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from motet._version import __version__
from motet.errors import SettingError
from motet.reports.charts import Line, lines
from motet.reports.curves import (
    by_agent,
    by_group,
    column,
    evaluated_by_agent,
    evaluated_by_group,
    is_constant,
    over_agents,
)
from motet.reports.groups import ABSENT, Group, differing
from motet.reports.html import (
    Cell,
    Child,
    Column,
    Html,
    Section,
    Shown,
    details,
    facts,
    note,
    page,
    paragraph,
    picture,
    side_by_side,
    table,
)
from motet.runs.history import COUNTERS, Array, RunHistory, extent, interval
from motet.runs.snapshot import ACTIVITIES
from motet.text import clock, label, short

__all__ = ["report_page"]

_MAX_PICTURE = 8 * 2**20  # bytes of the image of an episode


def report_page(groups: Sequence[Group], refused: Mapping[Path, str]) -> str:
    """Return the HTML file as a string."""
    runs = [run for group in groups for run in group.runs]
    return page(_title(groups), _sections(groups, refused), lead=_lead(runs), generator=f"motet {__version__}")


def _title(groups: Sequence[Group]) -> str:
    worlds = dict.fromkeys(_world(run) for group in groups for run in group.runs)
    return " and ".join(worlds) if len(worlds) <= 3 else f"{len(worlds)} worlds"


def _world(run: RunHistory) -> str:
    path = run.config["world"].get("path")
    return str(path).rpartition(":")[2] if path else "a world from a script"


def _lead(runs: Sequence[RunHistory]) -> str:
    used = sorted({str(run.config.get("motet", "(unknown version)")) for run in runs})
    return f"{_count(len(runs), 'run')} with motet {', '.join(used)}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _sections(groups: Sequence[Group], refused: Mapping[Path, str]) -> list[Section]:
    return [
        Section(title, parts)
        for title, parts in (
            ("Overview", _overview(groups, refused)),
            ("Learning", _learning(groups)),
            ("Evaluations", _evaluations(groups)),
            ("Agents", _agents(groups)),
            ("Measured by the world", _measured(groups)),
            ("Time", _time(groups)),
            ("Pace and lag", _pace(groups)),
            ("Learner metrics", _learners(groups)),
            ("Faults and counters", _faults(groups)),
            ("Episodes", _episodes(groups)),
            ("Settings", _all_settings(groups)),
        )
        if parts
    ]


def _overview(groups: Sequence[Group], refused: Mapping[Path, str]) -> list[Child]:
    runs = [run for group in groups for run in group.runs]
    numbers: list[tuple[str, Child]] = [
        ("runs", len(runs)),
        ("groups", len(groups)),
        ("steps per agent", f"{max(run.steps for run in runs):,}"),
        ("training time", clock(sum(run.seconds for run in runs))),
        ("restarts", sum(sum(run.restarts.values()) for run in runs)),
    ]
    parts: list[Child] = [facts(numbers), *_notes(groups, refused), _runs_table(groups)]
    if keys := differing(groups):
        columns = [Column("setting"), *(Column(group.name) for group in groups)]
        rows: list[list[Cell]] = [
            [Html("code", key), *(group.settings.get(key, ABSENT) for group in groups)] for key in keys
        ]
        parts.append(details("Settings that differ between groups", table(columns, rows), open_=len(keys) <= 12))
    return parts


def _notes(groups: Sequence[Group], refused: Mapping[Path, str]) -> list[Html]:
    found = [note(f"Not shown: {why}.", level="error") for why in refused.values()]
    for group in groups:
        for run in group.runs:
            if run.state == "running":
                share = f"{run.steps:,} of {run.newest.limit:,} steps" if run.newest else "no steps yet"
                found.append(note(f"{run.name} is still running: {share}.", level="warning"))
            if run.state in ("failed", "dead"):
                how = {"failed": "failed", "dead": "crashed"}[run.state]
                found.append(note(f"{run.name} {how} after {run.steps:,} steps.", level="warning"))
            if why := run.config.get("fell_back"):
                found.append(note(f"{run.name} fell back to the serial engine: {why}", level="warning"))
            found += [note(f"{run.name}: {problem}.", level="warning") for problem in run.problems]
        found += _doubts(group)
    found.append(note(_how_grouped(groups)))
    return found


def _doubts(group: Group) -> list[Html]:
    """Return notes about differences between the runs of a group that their settings do not show."""
    found = []
    for seed in dict.fromkeys(str(run.seed) for run in group.runs):
        same = [run.name for run in group.runs if str(run.seed) == seed]
        if len(same) > 1:
            found.append(note(f"{_and(same)} have the same seed ({seed}) but count as separate runs.", level="warning"))
    for name in ("motet", "python", "numpy", "torch"):
        used = {str(run.config.get("versions", {}).get(name)) for run in group.runs}
        if len(used) > 1:
            found.append(
                note(
                    f"The group {group.name!r} has runs with different versions of {name}: {_and(sorted(used))}.",
                    level="warning",
                )
            )
    ends = [(run.curves.team["steps"][-1], run.name) for run in group.shown]
    if len(ends) > 1 and min(ends)[0] < 0.98 * max(ends)[0]:
        steps, name = min(ends)
        found.append(
            note(f"The means of {group.name} end at {steps:,.0f} steps, where {name} ends; omit it to see more.")
        )
    return found


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _how_grouped(groups: Sequence[Group]) -> str:
    sizes = _and([_count(len(group.runs), "run") for group in groups])
    text = "Runs with equal settings except for the seed form a group"
    if len(groups) == 1 and len(groups[0].runs) == 1:
        return "There is only one run, so the curves have no interval."
    text += f": {_count(len(groups), 'group')} of {sizes}."
    return (
        text + " Curves are means over the runs of a group; bands are 95 % intervals of the mean (with two runs: both)."
    )


def _runs_table(groups: Sequence[Group]) -> Html:
    columns = [
        Column("run"),
        *([Column("group")] if len(groups) > 1 else []),
        Column("seed", number=True),
        Column("state"),
        Column("steps", number=True),
        Column("time", number=True, hint="training time, summed over all sessions"),
        Column("steps/s", number=True, hint="mean over the training time"),
        Column("team return", number=True, hint="mean return over the last episodes, summed over agents"),
        Column("best evaluation", number=True, hint="best greedy evaluation of the team"),
        Column("restarts", number=True),
        Column("sessions", number=True, hint="1 plus the number of times the run was resumed"),
    ]
    rows: list[list[Cell]] = []
    for group in groups:
        for run in group.runs:
            returns = run.curves.team.get("mean_return", np.zeros(0))
            best = run.evaluations.team.get("mean", np.zeros(0))
            rows.append(
                [
                    Shown(None, Html("code", run.name), hint=str(run.path)),
                    *([group.name] if len(groups) > 1 else []),
                    run.seed,
                    run.state,
                    run.steps,
                    Shown(run.seconds, clock(run.seconds)),
                    _short(run.steps / run.seconds if run.seconds else None),
                    _short(float(returns[-1]) if len(returns) else None),
                    _short(float(best.max()) if len(best) else None),
                    sum(run.restarts.values()),
                    run.sessions,
                ]
            )
    return table(columns, rows)


def _short(value: float | None) -> Shown:
    value = value if value is not None and np.isfinite(value) else None
    return Shown(value, short(value))


# ---- charts


def _charts_by_agent(
    groups: Sequence[Group], curves_of: Callable[[Group], list[Line]], what: str, y_label: str
) -> list[Html]:
    """Return a chart for each group with a curve for each agent, all with the same axes."""
    curves = {group.name: curves_of(group) for group in groups}
    every = [line for found in curves.values() for line in found]
    return [
        lines(
            found,
            title=what if len(groups) == 1 else f"{what}, {name}",
            x_label="steps of the agent",
            y_label=y_label,
            beside=every,
        )
        for name, found in curves.items()
        if found
    ]


def _learning(groups: Sequence[Group]) -> list[Child]:
    team = by_group(groups, column(None, "mean_return"))
    if not team:
        return [paragraph("No run has finished an episode yet.")]
    several = any(len(group.agents) > 1 for group in groups)
    whose = "Team return" if several else "Return"
    label = "mean return of the last episodes, summed over agents" if several else "mean of the last episodes"
    unit, length = _unit(max(run.seconds for group in groups for run in group.shown))
    over_time = by_group(groups, column(None, "mean_return", "seconds", length=length))
    parts: list[Child] = [
        lines(
            team,
            title=f"{whose} over steps",
            x_label="steps per agent",
            y_label=label,
            height_rem=19,
            caption=_apart(team, "steps"),
        ),
        lines(
            over_time,
            title=f"{whose} over time",
            x_label=f"training time in {unit}",
            y_label=label,
            height_rem=13,
            caption=_apart(over_time, "time"),
        ),
    ]
    if several:
        charts = _charts_by_agent(
            groups, lambda group: by_agent(group, "mean_return"), "Return of each agent", "return"
        )
        parts.append(side_by_side(*charts))
    return parts


def _measured(groups: Sequence[Group]) -> list[Child]:
    """Return a chart for each number that worlds measured."""
    names = dict.fromkeys(n for g in groups for run in g.shown for n in run.curves.team if n.startswith("metrics."))
    charts = [
        lines(found, title=name.partition(".")[2], x_label="steps", y_label="mean of the last episodes", height_rem=11)
        for name in names
        if (found := by_group(groups, column(None, name)))
    ]
    return [side_by_side(*charts)] if charts else []


def _apart(curves: Sequence[Line], what: str) -> str | None:
    """Return a note if runs of a group, or the groups, have no steps or time in common; else None."""
    ends: dict[str, tuple[float, float]] = {}
    for line in curves:
        known = [x for x, y in zip(line.x, line.y, strict=True) if np.isfinite(y)]
        if known:
            ends[line.name] = known[0], known[-1]
    missing = [line.name for line in curves if line.name not in ends]
    found = [f"There is no mean for {_and(missing)}: the runs have no {what} in common."] if missing else []
    if len(ends) > 1 and max(low for low, _ in ends.values()) > min(high for _, high in ends.values()):
        found.append(f"The groups have no {what} in common.")
    return " ".join(found) or None


def _unit(seconds: float) -> tuple[str, float]:
    units = (("hours", 3600.0), ("minutes", 60.0))
    return next(((name, length) for name, length in units if seconds >= 2 * length), ("seconds", 1.0))


def _evaluations(groups: Sequence[Group]) -> list[Child]:
    team = evaluated_by_group(groups)
    if not team:
        return []
    counts = {int(n) for g in groups for run in g.runs for n in run.evaluations.team.get("episodes", np.zeros(0))}
    parts: list[Child] = [
        paragraph(
            f"Greedy episodes of the published policies, {_and([f'{n:,}' for n in sorted(counts)])} per evaluation. "
            "A dot is an evaluation, with its 95 % interval: over the episodes for one run, over the runs for several."
        ),
        lines(team, title="Evaluated team return", x_label="steps per agent", y_label="mean return"),
    ]
    if any(len(group.agents) > 1 for group in groups):
        charts = _charts_by_agent(groups, evaluated_by_agent, "Evaluated return of each agent", "mean return")
        parts.append(side_by_side(*charts))
    return parts


def _agents(groups: Sequence[Group]) -> list[Child]:
    parts: list[Child] = []
    for group in groups:
        if group.shown:
            parts += [Html("h3", group.name)] if len(groups) > 1 else []
            parts.append(_agents_table(group))
    return parts


def _agents_table(group: Group) -> Html:
    columns = [
        Column("agent"),
        Column("algorithm"),
        Column("last return", number=True, hint="mean of the last episodes at the end of the run"),
        Column("best return", number=True, hint="highest mean of the last episodes during the run"),
        Column("evaluated", number=True, hint="last greedy evaluation"),
        Column("episodes", number=True),
        Column("length", number=True, hint="mean length of the last episodes in steps"),
        Column("steps/s", number=True, hint="median over the run"),
        Column("updates/s", number=True, hint="median over the run"),
        Column("samples per row", number=True, hint="sampled transitions per step"),
        Column("lag in versions", number=True, hint="median over the run"),
    ]
    rows: list[list[Cell]] = []
    for agent in group.agents:

        def cell(y: str, how: Callable[[Array], Any], of: str = "curves", agent: str = agent) -> Shown:
            found = [column(agent, y, of=of)(run)[1] for run in group.shown]
            known = [values[np.isfinite(values)] for values in found]
            return _with_interval(np.array([float(how(values)) for values in known if len(values)]))

        kinds = {str(run.config["agents"].get(agent, {}).get("class")).rpartition(":")[2] for run in group.runs}
        rows.append(
            [
                label(agent),
                _and(sorted(kinds)).removesuffix("Config"),
                cell("mean_return", _last),
                cell("mean_return", np.max),
                cell("mean", _last, "evaluations"),
                _with_interval(np.array([run.counters[agent]["episodes"] for run in group.shown], np.float64)),
                cell("mean_length", _last),
                cell("steps_per_s", np.median),
                cell("updates_per_s", np.median),
                cell("samples_per_row", _last),
                cell("lag_versions", np.median),
            ]
        )
    rows += [_fixed_row(group, name, policy) for name, policy in group.partners.items()]
    runs = len(group.shown)
    return table(columns, rows, caption="" if runs == 1 else f"Means over {runs} runs ± half of the 95 % interval.")


def _last(values: Array) -> float:
    return float(values[-1])


def _fixed_row(group: Group, name: str, policy: str) -> list[Cell]:
    """Return the row of an agent that acts by a given policy: it has returns and episodes, and no learner."""
    found = [row for run in group.shown if run.newest for row in run.newest.partners if row.name == name]

    def mean(values: Sequence[float | None]) -> Shown:
        return _with_interval(np.array([value for value in values if value is not None], np.float64))

    nothing = Shown(None, "-")
    return [
        label(name),
        f"fixed: {label(policy)}",
        mean([row.mean_return for row in found]),
        nothing,
        nothing,
        mean([float(row.episodes) for row in found]),
        mean([row.mean_length for row in found]),
        *[nothing] * 4,
    ]


def _with_interval(values: Array) -> Shown:
    if not len(values):
        return Shown(None, "-")
    mean, low, high = (float(value) for value in interval(values))
    if len(values) == 1 or low == high:
        return Shown(mean, short(mean))
    hint = f"{short(low, 4)} to {short(high, 4)}, {len(values)} runs"
    return Shown(mean, [f"{short(mean)} ", Html("small", f"± {short((high - low) / 2, 2)}")], hint)


def _time(groups: Sequence[Group]) -> list[Child]:
    """Return how each process of a run spent its time in the last session, and what limited the run."""
    parts: list[Child] = []
    for run in (run for group in groups for run in group.shown):
        newest = run.newest
        spent = [row for row in (*newest.processes, newest.main) if row and row.spent_s] if newest else []
        if newest is None or not spent:
            continue
        several = sum(len(group.shown) for group in groups) > 1
        parts += [Html("h3", run.name)] if several else []
        parts += [paragraph(newest.bottleneck)] if newest.bottleneck else []
        names = [name for name in ACTIVITIES if any(name in row.spent_s for row in spent)]
        columns = [Column("process"), *(Column(name, number=True, hint=_HINTS[name]) for name in names)]
        rows: list[list[Cell]] = [[row.name, *(_share(row.spent_s, name) for name in names)] for row in spent]
        parts.append(table(columns, rows, caption="Shares of the time since the run was started or resumed."))
    return parts


_HINTS = {
    "world": "stepping worlds",
    "policies": "choosing actions and writing rows",
    "updates": "updates of the algorithm",
    "batches": "drawing batches",
    "publishing": "saving and publishing versions",
    "evaluation": "playing evaluations, or waiting for them",
    "other": "other work",
    "pace": "waiting for the pace",
    "rows": "waiting for rows, or for room for them",
    "weights": "waiting for a version",
    "partner": "waiting for an isolated partner",
    "disk": "writing files",
    "start": "starting",
    "idle": "nothing to do",
}


def _share(spent: Mapping[str, float], name: str) -> Shown:
    share = spent.get(name, 0.0) / sum(spent.values())
    return Shown(share, f"{share:.0%}") if name in spent else Shown(None, "-")


def _pace(groups: Sequence[Group]) -> list[Child]:
    """Return charts over steps: by agent for one group, means over all agents for several groups."""
    wanted = (
        ("updates_per_step", "Updates per step", "updates per step of the agent", True),
        ("samples_per_row", "Samples per row", "sampled transitions per step", True),
        ("lag_versions", "Policy lag", "versions (actor furthest behind)", True),
        ("lag_steps", "Steps since the newest version", "steps of the agent", True),
        ("steps_per_s", "Steps per second", "steps of an agent", True),
        ("updates_per_s", "Updates per second", "updates of an agent", True),
        ("replay_fill", "Replay fill", "rows / capacity", True),
    )
    return _small_charts(groups, wanted)


def _learners(groups: Sequence[Group]) -> list[Child]:
    names = dict.fromkeys(
        name
        for group in groups
        for run in group.shown
        for columns in run.curves.agents.values()
        for name in columns
        if name.startswith("metrics.")
    )
    return _small_charts(groups, [(name, name.partition(".")[2].replace("_", " "), "", False) for name in names])


def _small_charts(groups: Sequence[Group], wanted: Sequence[tuple[str, str, str, bool]]) -> list[Child]:
    charts: list[Html] = []
    constant: dict[str, Html] = {}
    for y, title, unit, from_zero in wanted:
        if len(groups) == 1:
            found = by_agent(groups[0], y, band=extent)
        else:
            found = by_group(groups, over_agents(y), faint=False, band=extent)
        if not found:
            continue
        chart = lines(found, title=title, x_label="steps", y_label=unit, from_zero=from_zero, height_rem=11)
        if is_constant(found):
            constant[f"{title} {short(found[0].y[0])}"] = chart
        else:
            charts.append(chart)
    folded = [details(f"Constant: {', '.join(constant)}", side_by_side(*constant.values()))] if constant else []
    if not charts:
        return [*folded]
    words = ["Curves are means over all agents of a group."] if len(groups) > 1 else []
    words += ["Bands span the lowest to the highest run."] if any(len(g.shown) > 1 for g in groups) else []
    return [paragraph(" ".join(words), quiet=True), side_by_side(*charts), *folded]


# ---- faults, images, settings


def _faults(groups: Sequence[Group]) -> list[Child]:
    runs = [run for group in groups for run in group.shown]
    if not runs:
        return []
    names = [name for name in COUNTERS if name != "episodes"]
    restarts: list[list[Cell]] = [[run.name, name, n] for run in runs for name, n in run.restarts.items() if n]
    counters: list[list[Cell]] = [
        [run.name, label(agent), *(counts.get(name) for name in names)]
        for run in runs
        for agent, counts in run.counters.items()
        if any(counts.get(name) for name in names)
    ]
    columns = [Column("run"), Column("agent"), *(Column(name.replace("_", " "), number=True) for name in names)]
    parts: list[Child] = []
    if restarts:
        parts.append(table([Column("run"), Column("process"), Column("restarts", number=True)], restarts))
    else:
        parts.append(paragraph("No process was restarted."))
    if counters:
        parts.append(table(columns, counters))
    else:
        parts.append(paragraph(f"All counters are zero: {_and([name.replace('_', ' ') for name in names])}."))
    for run in runs:
        if run.said:
            words = [Html("li", line) for line in run.said]
            parts.append(details(f"Log of {run.name} ({_count(len(words), 'line')})", Html("ul", words, class_="log")))
    return parts


def _episodes(groups: Sequence[Group]) -> list[Child]:
    shown: list[Html] = []
    words: list[Html] = []
    for group in groups:
        for run in group.runs:
            path = run.path / "episode.gif"
            if not path.is_file():
                continue
            try:
                size = path.stat().st_size
                if size > _MAX_PICTURE:
                    words.append(note(f"{path} is not shown: {size / 2**20:.0f} MiB is too large.", level="warning"))
                    continue
                caption = (
                    f"{run.name}, seed {run.seed}, {group.name}" if len(groups) > 1 else f"{run.name}, seed {run.seed}"
                )
                shown.append(picture(path.read_bytes(), alt=f"an episode of {run.name}", caption=caption))
            except (OSError, SettingError) as error:
                words.append(note(f"{path} cannot be shown: {error}.", level="warning"))
    if not (shown or words):
        return []
    return [
        paragraph("Greedy episodes of the final policies.", quiet=True),
        *words,
        side_by_side(*shown, least_rem=14),
    ]


def _all_settings(groups: Sequence[Group]) -> list[Child]:
    parts: list[Child] = []
    for group in groups:
        seeds = ", ".join(str(run.seed) for run in group.runs)
        rows: list[list[Cell]] = [
            [Html("code", key), value] for key, value in {**group.settings, "seed": seeds}.items()
        ]
        versions = group.runs[0].config.get("versions", {})
        rows += [[Html("code", f"{name}, version"), str(version)] for name, version in versions.items()]
        title = f"All settings of {group.name}" if len(groups) > 1 else "All settings"
        parts.append(details(title, table([Column("setting"), Column("value")], rows)))
    return parts
