"""Pictures that compare a run of ``empower`` with the exact solution of its model: maps, and curves of the errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from motet.errors import SettingError
from motet.evaluation.exact import EmpowermentGap, ExactEmpowerment, behaviour_of
from motet.runs.status import read_lines
from motet.system.files import write_whole
from motet.text import legible

__all__ = ["compare_with_exact", "error_curves"]

_CURVES = {
    "share": "share of the way",
    "policy_error": "RMSE of $\\pi_r$",
    "attainment_error": "mean absolute error of $V_e$",
}


def compare_with_exact(run: Path, *, trust: bool = False) -> tuple[EmpowermentGap, list[str]]:
    """Compare a run with the exact solution, and draw both into its directory.

    ``exact.png`` has the humans' power and the robot's value and policy, exact and learned. ``exact_curves.png`` has
    the errors of all evaluations that were scored by ``share_of_the_way``. Returns the comparison, and a line for each
    picture: its path, or why there is none.
    """
    behaviour = behaviour_of(run, trust=trust)
    exact = ExactEmpowerment(behaviour)
    target = run / "exact.png"
    try:
        write_whole(target, lambda beside: exact.picture(behaviour, beside))
        lines = [str(target)]
    except SettingError as error:
        lines = [f"no picture: {error}"]
    curves = error_curves(run)
    return exact.gap(behaviour), lines if curves is None else [*lines, str(curves)]


def error_curves(run: Path) -> Path | None:
    """Plot the errors of a run against its steps; None if fewer than two evaluations were compared."""
    found = [line for _, line in read_lines(run / "evaluation.jsonl") if "exact" in line]
    if len(found) < 2:
        return None
    target = run / "exact_curves.png"
    write_whole(target, lambda beside: _draw(beside, run.name, found))
    return target


def _draw(path: Path, title: str, lines: list[dict[str, Any]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(12, 3.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(legible(title, 80), fontsize=11)
    steps = [line["step"] for line in lines]
    for axes, (name, label) in zip(figure.subplots(1, len(_CURVES)), _CURVES.items(), strict=True):
        axes.plot(steps, [line["exact"][name] for line in lines], marker="o", ms=3, label="learned")
        if name == "share":
            axes.axhline(1, color="#2e6e4e", lw=1, ls="--", label="exact robot")
            axes.axhline(0, color="#999999", lw=1, ls="--", label="random robot")
        elif name == "policy_error":
            random = [line["exact"]["random_error"] for line in lines]
            axes.plot(steps, random, color="#999999", lw=1, ls="--", label="random robot")
            axes.set_ylim(bottom=0)
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.25, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, format="png")
