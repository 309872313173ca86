"""Pages that motet makes, in a browser: nothing is clipped, scrolls sideways or overlaps, and nothing is loaded."""

import functools
import itertools

import numpy as np
from support.browser import misfits

import motet
from motet.evaluation.tournament import Tournament
from motet.reports.charts import Bar, Line, bars, histogram, lines, strips
from motet.reports.html import Column, Section, page, side_by_side, table
from motet.worlds import TreasureHunt
from reports.test_report import course, look, write

LONG = "a_policy_with_a_rather_long_name_and_no_space"


def reported(folder):
    """A report on three groups of two runs, one of them long ago, with evaluations and a note of everything."""
    paths = []
    for i, (gamma, seed) in enumerate(itertools.product((0.9, 0.5, 0.123456), (0, 1))):
        points = [(s, 123_456.0 * s) for s in range(100, 1001, 100)]
        path = write(folder / f"run_{i}_{LONG}", course(slope=1e5 * (i - 2)), points, gamma=gamma, seed=seed)
        (path / "logs" / "run.log").write_text("x" * 300 + " was killed by SIGKILL\n")
        paths.append(path)
    paths.append(write(folder / "failed", [look(100, 1), look(900, 9000, restarts=3, broken=2, state="failed")]))
    return motet.report(paths, folder / "report.html").path


def played(folder):
    """An evaluation with a film, and a tournament."""
    world = functools.partial(TreasureHunt, agents=3, size=7, turns=6)
    result = motet.evaluate(world, ["random", f"noop,name={LONG}"], episodes=3, film=(0,))
    (folder / "evaluation.html").write_text(result.html(), encoding="utf-8")
    duel = functools.partial(TreasureHunt, agents=2, size=7, turns=6)
    found: Tournament = motet.tournament(duel, ["random", f"noop,name={LONG}", "forager"], rounds=2)
    (folder / "tournament.html").write_text(found.html(), encoding="utf-8")


def charted(folder):
    """Charts with awkward axes."""
    charts = []
    for low, high in ((0, 20_000), (12_345, 12_346), (-1.5e9, 1.5e9), (1e-7, 1e-5), (-0.001, 0.001), (0.0, 99.5)):
        x = np.linspace(low, high, 9).tolist()
        charts.append(lines([Line("x", x, x)], title=f"lines {low} to {high}", x_label="steps"))
        charts.append(bars([Bar(LONG, high, low, high)], title=f"bars {low} to {high}"))
        charts.append(strips({"x": x, LONG: x[:2]}, title=f"strips {low} to {high}"))
        charts.append(histogram(x, title=f"histogram {low} to {high}"))
    wide = table([Column(f"column {i}", number=i > 0) for i in range(11)], [[LONG] + [1234567.0] * 10] * 2)
    small = table([Column("setting"), Column(LONG)], [[LONG, LONG * 3], ["x", 1]])
    made = page("Charts", [Section("One", [side_by_side(*charts)]), Section("Two", [*charts, wide, small])])
    (folder / "charts.html").write_text(made, encoding="utf-8")


def test_pages_fit_wide_and_narrow_screens(tmp_path):
    reported(tmp_path)
    played(tmp_path)
    charted(tmp_path)
    names = ["report.html", "evaluation.html", "tournament.html", "charts.html"]
    found = misfits(tmp_path, names, tmp_path, plain=True)
    assert not found, "\n".join(map(str, found))
