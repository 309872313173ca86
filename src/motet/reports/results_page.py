"""The HTML pages of an evaluation and of a tournament."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from motet.intervals import Score
from motet.reports.charts import Bar, bars, strips
from motet.reports.html import Cell, Column, Html, Section, Shown, details, facts, note, page, paragraph, player, table
from motet.reports.win_rates import verdict_section, win_rates_section
from motet.system.memory import format_bytes
from motet.text import clock, counted, label, short

if TYPE_CHECKING:
    from motet.evaluation.result import Episode, Evaluation, Measured, SeededResult
    from motet.evaluation.tournament import Tournament
    from motet.isolation.usage import PolicyUsage

__all__ = [
    "evaluation_page",
    "failed_section",
    "failures_section",
    "games_section",
    "latency_section",
    "score_cell",
    "seconds",
    "shared_line",
    "tournament_page",
    "usage_cells",
    "usage_section",
    "why_partial",
    "world_in_words",
]

_EPISODES = 1000  # maximum number of rows in the table of episodes
_FAILURES = 200


def seconds(value: float) -> str:
    """Format a duration in seconds.

    >>> seconds(0.0000123), seconds(0.0456), seconds(3.21)
    ('12 µs', '46 ms', '3.2 s')
    """
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * factor:.2g} {unit}" if value * factor < 100 else f"{value * factor:.0f} {unit}"
    return f"{value:.2g} s" if value < 100 else f"{value:.0f} s"


def score_cell(one: Score) -> Shown:
    """Return a table cell with a mean and its interval."""
    if one.count == 1:
        return Shown(one.mean, short(one.mean), "no interval for one episode")
    half = (one.high - one.low) / 2
    return Shown(
        one.mean, f"{short(one.mean)} ± {short(half)}", f"95 % interval from {short(one.low)} to {short(one.high)}"
    )


def shared_line(result: SeededResult) -> str:
    """Return a sentence that names the shared policies; empty if no policy is shared."""
    shared = [one["name"] for one in result.policies if one.get("shared") or one["kind"] == "joint"]
    names = map(label, dict.fromkeys(shared))
    return f"{', '.join(names)}: one object acts for all agents of the policy (shared)" if shared else ""


def evaluation_page(result: Evaluation) -> str:
    """Return the HTML page as a string."""
    sections = [
        _scores(result),
        win_rates_section(result),
        _seats(result),
        _watch(result),
        latency_section(result.measured),
        usage_section(result.measured),
        failures_section(result.episodes, result.measured, result.settings["stand_in"], "episode"),
        failed_section(result.episodes, "episode"),
        _episodes(result),
    ]
    return page(
        f"{world_in_words(result)[0]}: {', '.join(label(name, 80) for name in result.names)}",
        [part for part in sections if part is not None],
        lead=f"{world_in_words(result)[1]}, seed {result.settings['seed']}.",
    )


def world_in_words(result: SeededResult) -> tuple[str, str]:
    """Return the name of the world, and the name with its settings."""
    name = (result.world.get("path") or str(result.world.get("given", "a world"))).rpartition(":")[2]
    settings = ", ".join(f"{key} {value}" for key, value in (result.world.get("settings") or {}).items())
    return name, f"{name} ({settings})" if settings else name


def _scores(result: Evaluation) -> Section:
    measured = result.measured
    parts: list[Html] = []
    if result.partial:
        asked = result.settings["episodes"]
        after = f"after {len(result.episodes):,} of {counted(asked, 'episode')}"
        parts.append(why_partial(result.stopped, after))
    for name, episode in result.out.items():
        parts.append(
            note(f"{label(name)} failed too often and was disqualified after episode {episode}.", level="error")
        )
    parts.append(
        facts(
            [
                ("episodes", f"{len(result.episodes):,}"),
                ("policies", str(len(result.names))),
                ("seats", str(len(result.agents))),
                ("failures", f"{sum(len(episode.failures) for episode in result.episodes):,}"),
                *([("failed episodes", f"{failed:,}")] if (failed := sum(result.failed().values())) else []),
                ("duration", clock(measured.seconds)),
            ]
        )
    )
    columns = [
        Column("policy"),
        Column("return", number=True, hint="mean over episodes with its 95 % interval"),
        Column("std", number=True, hint="standard deviation over episodes"),
        Column("min", number=True),
        Column("max", number=True),
        Column("episodes", number=True),
        Column("failures", number=True),
    ]
    failures = result.failures()
    rows: list[list[Cell]] = []
    for name, one in result.scores().items():
        failed = sum(failures.get(name, {}).values())
        if one is None:
            rows.append([label(name), None, None, None, None, 0, failed])
            continue
        deviation = one.deviation if one.count > 1 else None
        rows.append([label(name), score_cell(one), deviation, one.least, one.most, one.count, failed])
    team = result.team()
    if team is not None and len(result.agents) > 1:
        deviation = team.deviation if team.count > 1 else None
        rows.append(
            [Html("em", "sum of all seats"), score_cell(team), deviation, team.least, team.most, team.count, ""]
        )
    parts.append(table(columns, rows, caption="Returns"))
    if shared := shared_line(result):
        parts.append(paragraph(f"{shared}."))
    parts.append(
        strips(
            {label(name): result.returns(name) for name in result.names},
            title="Returns of all episodes",
            x_label="return per seat, averaged over the policy's seats",
            caption="Each dot is an episode, the box is the interquartile range, the line is the median.",
        )
    )
    return Section("Scores", parts)


def _seats(result: Evaluation) -> Section | None:
    found = result.seat_scores()
    if len(result.agents) < 2:
        return None
    rows: list[list[Cell]] = []
    for name in result.names:
        cells = [found.get((name, agent)) for agent in result.agents]
        rows.append([label(name), *(None if one is None else score_cell(one) for one in cells)])
    columns = [Column("policy"), *(Column(label(agent), number=True) for agent in result.agents)]
    shown: list[Html] = [table(columns, rows, caption="Return by seat")]
    if len(found) <= 40:
        marks = [
            Bar(f"{label(name)}, {label(agent)}", one.mean, *_whisker(one), colour=result.names.index(name))
            for (name, agent), one in found.items()
        ]
        shown.append(bars(marks, title="Return by policy and seat", x_label="mean with its 95 % interval"))
    return Section(
        "Seats", shown, lead="Return of each policy on each seat. A dash means that the policy never had that seat."
    )


def _whisker(one: Score) -> tuple[float | None, float | None]:
    return (one.low, one.high) if one.count > 1 else (None, None)


def _watch(result: Evaluation) -> Section | None:
    drawn = [episode for episode in result.episodes if episode.frames]
    if not drawn:
        return None
    return Section("Rendered episodes", [_player(result, episode) for episode in drawn])


def _player(result: Evaluation, episode: Episode) -> Html:
    if episode.failed:
        pairs = zip(result.agents, episode.policies, strict=True)
        who = ", ".join(f"{label(agent)}: {label(name)}" for agent, name in pairs)
        who += f". The episode failed ({episode.failed})."
    else:
        who = ", ".join(
            f"{label(agent)}: {label(name)} ({short(value)})"
            for agent, name, value in zip(result.agents, episode.policies, episode.returns, strict=True)
        )
    return player(
        episode.frames,
        frames_per_s=max(episode.frames_per_s, 1.0),
        labels=episode.captions,
        alt=f"episode {episode.number}",
        caption=f"Episode {episode.number}, {episode.turns:,} turns. {who}",
    )


def latency_section(measured: Measured) -> Section:
    """Return the section about decision latency."""
    columns = [
        Column("policy"),
        Column("process"),
        Column("decisions", number=True),
        Column("median", number=True),
        Column("p99", number=True),
        Column("max", number=True),
    ]
    rows: list[list[Cell]] = [
        [
            label(name),
            "separate" if measured.isolated.get(name) else "shared with the job",
            one.count,
            Shown(one.quantile(0.5), seconds(one.quantile(0.5))),
            Shown(one.quantile(0.99), seconds(one.quantile(0.99))),
            Shown(one.longest, seconds(one.longest)),
        ]
        for name, one in measured.latency.items()
    ]
    jobs = counted(measured.jobs, "job")
    sandbox = "" if measured.sandbox == "no" else f", sandbox {measured.sandbox}"
    lead = f"Time from the observation to the action, with {jobs}{sandbox}."
    said = [paragraph(line, quiet=True) for line in measured.notes]
    return Section("Decision latency", [table(columns, rows, caption="Decision latency"), *said], lead=lead)


def usage_section(measured: Measured) -> Section | None:
    """Return the section about the processes of isolated policies; None if there are none."""
    usage = measured.usage
    if not usage:
        return None
    columns = [
        Column("policy"),
        *(Column(name, number=True) for name in ("memory", "CPU time", "started", "replaced", "start", "reset")),
    ]
    rows: list[list[Cell]] = [[label(name), *usage_cells(one)] for name, one in usage.items()]
    lead = "Memory is the largest private memory of one process; start is the longest time, reset the mean."
    return Section("Policy processes", [table(columns, rows, caption="Policy processes")], lead=lead)


def usage_cells(one: PolicyUsage) -> list[Shown]:
    """Return the cells of a policy: memory, CPU time, processes started and replaced, start and reset times."""
    reset_s = one.reset_s / max(one.resets, 1)
    return [
        Shown(one.memory_bytes, format_bytes(one.memory_bytes)),
        Shown(one.cpu_s, seconds(one.cpu_s)),
        Shown(one.started, f"{one.started:,}"),
        Shown(one.replaced, f"{one.replaced:,}"),
        Shown(one.start_s, seconds(one.start_s)),
        Shown(reset_s, seconds(reset_s)),
    ]


def failures_section(episodes: Sequence[Episode], measured: Measured, stand_in: str, what: str) -> Section | None:
    """Return the section about failures of policies and their output; None if there is neither."""
    failures = [failure for episode in episodes for failure in episode.failures]
    outputs = {name: text for name, text in measured.output.items() if text.strip()}
    if not failures and not outputs:
        return None
    parts: list[Html] = []
    if failures:
        columns = [
            Column(what, number=True),
            Column("turn", number=True),
            Column("policy"),
            Column("agents"),
            Column("cause"),
            Column("detail"),
        ]
        rows: list[list[Cell]] = [
            [
                one.episode,
                one.turn,
                label(one.policy),
                ", ".join(map(label, one.agents)),
                one.cause,
                _detail(one.detail),
            ]
            for one in failures[:_FAILURES]
        ]
        more = len(failures) - len(rows)
        if more:
            parts.append(paragraph(f"Only the first {len(rows)} are shown; {more:,} more are in the JSON.", quiet=True))
        parts.append(table(columns, rows, caption="Failures"))
    for name, text in outputs.items():
        parts.append(details(f"Last output of {label(name)}", _log(text.splitlines())))
    lead = f"After a failure the stand-in ({stand_in}) acts until the end of the {what}." if failures else ""
    return Section("Failures" if failures else "Output", parts, lead=lead)


def _detail(text: str) -> Cell:
    """Return the first line of a text, with the other lines collapsed."""
    first, *rest = text.splitlines() or [""]
    return details(first, _log(rest)) if rest else first


def _log(lines: Sequence[str]) -> Html:
    return Html("ul", [Html("li", line) for line in lines], class_="log")


def _episodes(result: Evaluation) -> Section:
    columns = [
        Column("episode", number=True),
        Column("turns", number=True),
        *(Column(label(agent)) for agent in result.agents),
        Column("failures", number=True),
    ]
    rows: list[list[Cell]] = []
    for episode in result.episodes[:_EPISODES]:
        rows.append([episode.number, episode.turns, *_seated(episode), len(episode.failures)])
    more = len(result.episodes) - len(rows)
    shown = table(columns, rows, caption="Returns by episode and seat")
    lead = f"Only the first {len(rows):,} are shown; {more:,} more are in the JSON." if more else ""
    return Section("Episodes", [details(f"Table of {counted(len(rows), 'episode')}", shown)], lead=lead)


def _seated(episode: Episode) -> list[Cell]:
    """Return the table cells with the return and the policy of each seat."""
    if episode.failed:
        return [Shown(None, f"failed {label(name)}") for name in episode.policies]
    pairs = zip(episode.policies, episode.returns, strict=True)
    return [Shown(value, f"{short(value, 4)} {label(name)}") for name, value in pairs]


def failed_section(episodes: Sequence[Episode], what: str) -> Section | None:
    """Return the section about failed episodes or games."""
    failed = [episode for episode in episodes if episode.failed]
    if not failed:
        return None
    columns = [Column(what, number=True), Column("cause"), Column("turn", number=True), Column("policies")]
    rows: list[list[Cell]] = [
        [one.number, one.failed, one.turns, ", ".join(map(label, dict.fromkeys(one.policies))), _detail(one.detail)]
        for one in failed[:_FAILURES]
    ]
    lead = f"The world raised, or the job ended or hung. Failed {what}s are not counted."
    if more := len(failed) - len(rows):
        lead += f" Only the first {len(rows)} are shown; {more:,} more are in the JSON."
    shown = table([*columns, Column("detail")], rows, caption=f"Failed {what}s")
    return Section(f"Failed {what}s", [shown], lead=lead)


def why_partial(stopped: str, after: str) -> Html:
    """Return a note about an early end."""
    return note(f"Stopped {after}: {stopped}." if stopped else f"Interrupted {after}.", level="warning")


# ---- tournaments


def tournament_page(result: Tournament) -> str:
    """Return the HTML page as a string."""
    sections = [
        verdict_section(result.verdict, result.settings.get("delta", 0.0)),
        _ratings(result),
        win_rates_section(result),
        _cross_table(result),
        failed_section(result.games, "game"),
        games_section(result.agents, result.games),
    ]
    rounds = ("at most " if result.verdict else "") + counted(result.settings["rounds"], "round")
    return page(
        f"{world_in_words(result)[0]}: tournament",
        [part for part in sections if part is not None],
        lead=f"{world_in_words(result)[1]}, seed {result.settings['seed']}, {rounds}.",
    )


def _ratings(result: Tournament) -> Section:
    parts: list[Html] = []
    if result.partial:
        parts.append(why_partial(result.stopped, f"after {counted(len(result.games), 'game')}"))
    for name, game in result.out.items():
        parts.append(note(f"{label(name)} failed too often and was disqualified after game {game}.", level="error"))
    failures, returns = result.failures(), result.returns()
    found = result.ratings()
    columns = [
        Column("policy"),
        Column("rating", number=True, hint="Elo units; the mean is 1500"),
        Column("95 % interval", hint="95 % confidence interval of the rating"),
        Column("return", number=True),
        Column("games", number=True),
        Column("failures", number=True),
    ]
    rows: list[list[Cell]] = []
    for name, one in found.items():
        mean = returns[name]
        shown = None if mean is None else score_cell(mean)
        between = Shown(one.high - one.low, f"{one.low:.0f} to {one.high:.0f}")
        rating = Shown(one.rating, f"{one.rating:.0f}")
        rows.append([label(name), rating, between, shown, one.games, failures.get(name, 0)])
    marks = [Bar(label(name), one.rating - 1500, one.low - 1500, one.high - 1500) for name, one in found.items()]
    parts.append(table(columns, rows, caption="Ratings"))
    if shared := shared_line(result):
        parts.append(paragraph(f"{shared}."))
    parts.append(bars(marks, title="Rating relative to the mean", x_label="rating - 1500 with its 95 % interval"))
    lead = "A difference of 200 means about three wins in four games, a difference of 400 ten wins in eleven games."
    return Section("Ratings", parts, lead=lead)


def _cross_table(result: Tournament) -> Section:
    cross, order = result.cross_table(), list(result.ratings())
    columns = [Column("policy"), *(Column(label(name), number=True) for name in order)]
    rows: list[list[Cell]] = []
    for name in order:
        cells: list[Cell] = []
        for other in order:
            if other not in cross[name]:
                cells.append(None)
                continue
            share, count = cross[name][other]
            cells.append(Shown(share, f"{share:.0%}", counted(count, "game")))
        rows.append([label(name), *cells])
    lead = "Share of points of the policy of the row against the policy of the column. A draw is half a win."
    return Section("Cross table", [table(columns, rows, caption="Share of points")], lead=lead)


def games_section(agents: Sequence[str], games: Sequence[Episode]) -> Section:
    """Return the section with the table of games."""
    columns = [
        Column("game", number=True),
        *(Column(label(agent)) for agent in agents),
        Column("failures", number=True),
    ]
    rows: list[list[Cell]] = []
    for game in games[:_EPISODES]:
        rows.append([game.number, *_seated(game), len(game.failures)])
    more = len(games) - len(rows)
    lead = f"Only the first {len(rows):,} are shown; {more:,} more are in the JSON." if more else ""
    return Section(
        "Games", [details(f"Table of {counted(len(rows), 'game')}", table(columns, rows, caption="Returns"))], lead=lead
    )
