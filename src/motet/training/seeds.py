"""Several seeds of one experiment: one run for each seed in one folder, in parallel if there are enough cores.

    folder/seeds.json            the seeds and the settings that all runs share
    folder/seed-0/               a run directory, and so on
    folder/report.html           one report over all runs

Successive runs are played in this process, and shown like any run. Parallel runs are played in separate processes.
These get their arguments through a pipe, and end when the other end of the pipe is closed, for example because this
process died. If an interrupted set is started again, finished runs are kept and the others are resumed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from rich.console import Console
from rich.text import Text

from motet.errors import MotetError, SettingError
from motet.intervals import student
from motet.runs.config import run_config
from motet.runs.directory import RunDirectory
from motet.runs.display import PlainTable, fitted
from motet.runs.history import RunHistory, read_run
from motet.runs.show import resolved
from motet.runs.sinks import DisplayChoice
from motet.system.child import check_main_guard, interrupts
from motet.system.files import write_whole
from motet.system.machine import usable_cores
from motet.text import aligned, clock, plain
from motet.training.roster import fitted_world, make_roster
from motet.training.run import Algorithms, WorldSource, resume, train
from motet.training.settings import Settings
from motet.worlds.catalogue import world_factory

__all__ = ["SeedRuns", "train_seeds"]

_POLL_S = 0.2  # seconds between two checks of the processes of runs


@dataclass
class SeedRuns:
    """The runs of several seeds of one experiment."""

    folder: Path
    runs: dict[int, RunHistory]
    """The runs that have begun, by seed."""
    state: str
    """``done``, ``stopped`` (by Ctrl-C or a callback) or ``failed``."""
    failures: dict[int, str]
    """By seed: the reason why a run failed."""
    report: Path | None
    """The report over all runs; None if no run has metrics."""
    interrupted: bool = False
    """Whether Ctrl-C or SIGTERM stopped the set."""

    def returns(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The last mean return of the team in each run."""
        return np.array([_last(run) for run in self.runs.values()])


def train_seeds(
    world: WorldSource,
    algorithm: Algorithms = "dqn",
    settings: Settings | None = None,
    *,
    seeds: int | Sequence[int] = 5,
    run: str | os.PathLike[str],
    side_by_side: int | None = None,
    display: DisplayChoice = "auto",
    on_message: Callable[[str], object] | None = None,
) -> SeedRuns:
    """Train several seeds of one experiment, with one table and one report over all of them.

    If the folder has runs of the same experiment, finished ones are kept and the others are resumed.

    ::

        found = motet.train_seeds("treasure_hunt", "dqn", seeds=5, run="runs/hunt")
        found.returns().mean()

    Args:
        world: as in :func:`train`.
        algorithm: as in :func:`train`.
        settings: as in :func:`train`; its ``seed`` is the first one if ``seeds`` is a number.
        seeds: the number of seeds, or the seeds themselves.
        run: the folder for the runs.
        side_by_side: number of runs at the same time. By default as many as the cores allow, which may be one.
        display: as in :func:`train`. Of parallel runs, one line is shown at the end of each.
        on_message: called with one line of text for each event that the user should know about.
    """
    check_main_guard(starts=True)
    shown, settings, folder = resolved(display), settings or Settings(), Path(run)
    if not isinstance(settings, Settings):
        raise SettingError(f"settings must be a motet.Settings, got {settings!r}")
    wanted = _seeds(seeds, settings.seed)
    if side_by_side is not None and side_by_side < 1:
        raise SettingError(f"side_by_side must be an int >= 1, got {side_by_side}")
    factory = fitted_world(world_factory(world), algorithm)
    _prepare(folder, run_config(factory, make_roster(factory, algorithm, settings), settings), wanted)
    console = Console(highlight=False, force_jupyter=False)

    def say(line: str) -> None:
        if shown != "off":
            console.print(Text(plain(line)), soft_wrap=True)
        if on_message is not None:
            on_message(line)

    at_once = min(side_by_side or _at_once(settings), len(wanted))
    todo = [seed for seed in wanted if _state(folder / f"seed-{seed}") != "done"]
    if kept := len(wanted) - len(todo):
        say(f"{kept} of {len(wanted)} runs were done before, and are kept")
    if at_once == 1:
        failures, interrupted = _one_by_one(factory, algorithm, settings, folder, todo, display)
    else:
        alone = replace(settings, learner_processes=settings.learner_processes or _learners(settings, at_once))
        failures, interrupted = _side_by_side(factory, algorithm, alone, folder, todo, at_once, say)
    found = {seed: read_run(path) for seed in wanted if _state(path := folder / f"seed-{seed}") != "new"}
    state = (
        "failed" if failures else "done" if all(_state(folder / f"seed-{s}") == "done" for s in wanted) else "stopped"
    )
    result = SeedRuns(folder, found, state, failures, _reported(folder, found, say), interrupted)
    if shown != "off":
        console.print(fitted(_table(result, wanted), console))
    if result.report is not None:
        say(f"report  {result.report}")
    if state != "done":
        say(f"{state}: give the same command again to continue with the runs that are not done")
    return result


def _seeds(given: int | Sequence[int], first: int) -> list[int]:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return list(range(first, first + given))
    if isinstance(given, Sequence) and given and all(isinstance(seed, int) and seed >= 0 for seed in given):
        different = list(dict.fromkeys(given))
        if len(different) == len(given):
            return different
    raise SettingError(f"seeds must be an int >= 1 or a list of different seeds, got {given!r}")


def _prepare(folder: Path, config: dict[str, Any], seeds: Sequence[int]) -> None:
    """Make the folder, or check that its runs belong to the same experiment."""
    shared = {key: config[key] for key in ("world", "agents")}
    shared["settings"] = {name: value for name, value in config["settings"].items() if name != "seed"}
    shared = json.loads(json.dumps(shared))
    path = folder / "seeds.json"
    if path.is_file():
        before = json.loads(path.read_text())["experiment"]
        if changed := [name for name in shared if before.get(name) != shared[name]]:
            raise SettingError(
                f"run must be a new folder or one of the same experiment, got {str(folder)!r}, whose runs have other "
                f"{' and '.join(changed)}; give another name"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise SettingError(f"run must be a new or empty folder, or one of several seeds, got {str(folder)!r}")
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"seeds": list(seeds), "experiment": shared}, indent=1)
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def _state(run: Path) -> str:
    """The state of a run: new, done, or the state in which it stopped."""
    if not (run / "config.json").is_file():
        return "new"
    try:
        return str(read_run(run).state)
    except MotetError:
        return "new"


def _at_once(settings: Settings) -> int:
    """Number of runs that the cores allow. A run has at least an actor and a learner, unless it is serial."""
    takes = 1 if settings.engine == "serial" else settings.actors + (settings.learner_processes or 1)
    return 1 if settings.engine == "ray" else max(1, usable_cores() // takes)


def _learners(settings: Settings, at_once: int) -> int | None:
    return None if settings.engine != "processes" else max(1, usable_cores() // at_once - settings.actors)


def _begin(
    factory: Callable[[], Any], algorithm: Any, settings: Settings, seed: int, path: Path, display: DisplayChoice
) -> Any:
    """Train a seed, or resume its run if it has a checkpoint."""
    settings = replace(settings, seed=seed)
    if (path / "config.json").is_file():
        if RunDirectory.open(path).steps():
            return resume(path, world=factory, algorithm=algorithm, trust=True, display=display)
        shutil.rmtree(path)  # the run was killed before its first checkpoint
    return train(factory, algorithm, settings, run=path, display=display)


def _one_by_one(
    factory: Callable[[], Any],
    algorithm: Any,
    settings: Settings,
    folder: Path,
    seeds: Sequence[int],
    display: DisplayChoice,
) -> tuple[dict[int, str], bool]:
    failures: dict[int, str] = {}
    for seed in seeds:
        try:
            result = _begin(factory, algorithm, settings, seed, folder / f"seed-{seed}", display)
        except MotetError as error:
            failures[seed] = str(error)
            continue
        if result.interrupted:
            return failures, True
    return failures, False


def _side_by_side(
    factory: Callable[[], Any],
    algorithm: Any,
    settings: Settings,
    folder: Path,
    seeds: Sequence[int],
    at_once: int,
    say: Callable[[str], None],
) -> tuple[dict[int, str], bool]:
    """Train each seed in a separate process, whose output is in ``seed-N.log``."""
    waiting, playing, failures = list(seeds), dict[int, subprocess.Popen[bytes]](), dict[int, str]()
    try:
        with interrupts() as interrupted:
            while playing or (waiting and not interrupted.is_set()):
                while waiting and len(playing) < at_once and not interrupted.is_set():
                    seed = waiting.pop(0)
                    job = partial(_begin, factory, algorithm, settings, seed, folder / f"seed-{seed}", "off")
                    playing[seed] = _started(job, folder / f"seed-{seed}.log")
                    say(f"seed {seed}: started")
                for seed, process in list(playing.items()):
                    if process.poll() is None:
                        continue
                    del playing[seed]
                    if process.stdin is not None:
                        process.stdin.close()
                    if process.returncode == 0:
                        ended = read_run(folder / f"seed-{seed}")
                        say(f"seed {seed}: {ended.state} after {ended.steps:,} steps in {clock(ended.seconds)}")
                    else:
                        failures[seed] = (
                            f"its process ended with {process.returncode}: see {folder / f'seed-{seed}.log'}"
                        )
                        say(f"seed {seed}: {failures[seed]}")
                if interrupted.is_set():
                    for process in playing.values():
                        process.terminate()  # the process writes a checkpoint
                    for process in playing.values():
                        process.wait()
                time.sleep(_POLL_S)
            return failures, interrupted.is_set()
    finally:
        for process in playing.values():
            process.kill()
            process.wait()


def _started(job: Callable[[], Any], log: Path) -> subprocess.Popen[bytes]:
    """Start a job in a process that ends when this one ends, because the other end of its input is then closed."""
    given = cloudpickle.dumps((sys.path, job))
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as seeds; seeds._work()"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the others
        )
    assert process.stdin is not None
    try:
        process.stdin.write(len(given).to_bytes(8, "little") + given)
        process.stdin.flush()
    except BrokenPipeError:  # the process has ended already, which its exit code shows
        pass
    return process


def _work() -> None:
    """Do the job that is passed through the standard input. This is the main function of the separate process."""
    given = sys.stdin.buffer
    path, job = cloudpickle.loads(given.read(int.from_bytes(given.read(8), "little")))
    sys.path[:] = path

    def end_with_parent() -> None:
        given.read(1)  # returns when the parent has ended
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    job()
    sys.stdout.flush()
    os._exit(0)  # the thread still reads the input, and the interpreter would wait for it


def _reported(folder: Path, runs: dict[int, RunHistory], say: Callable[[str], None]) -> Path | None:
    known = [run.path for run in runs.values() if len(run.curves)]
    if not known:
        return None
    from motet.reports.report import report

    try:
        report(known, folder / "report.html")
    except (MotetError, OSError) as error:
        say(f"report: none: {error}")
        return None
    return folder / "report.html"


def _last(run: RunHistory) -> float:
    values = run.curves.team.get("mean_return", np.zeros(0))
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else math.nan


def _evaluated(run: RunHistory) -> float:
    values = run.evaluations.team.get("mean", np.zeros(0))
    return float(values[-1]) if len(values) else math.nan


def _table(result: SeedRuns, seeds: Sequence[int]) -> PlainTable:
    """One row for each seed, and the mean over all of them with its 95 % interval."""
    table = PlainTable()
    for name in ("seed", "state", "steps", "time", "return", "evaluation"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    runs = [result.runs.get(seed) for seed in seeds]
    columns = [[math.nan if run is None else how(run) for run in runs] for how in (_last, _evaluated)]
    texts = [aligned([None if math.isnan(value) else value for value in column]) for column in columns]
    for i, (seed, run) in enumerate(zip(seeds, runs, strict=True)):
        state = "failed" if seed in result.failures else "new" if run is None else run.state
        cells = ("-", "-") if run is None else (f"{run.steps:,}", clock(run.seconds))
        table.add_row(str(seed), state, *cells, *(column[i] for column in texts))
    table.add_row("mean", "", "", "", *(_mean(column) for column in columns), style="bold")
    return table


def _mean(values: Sequence[float]) -> str:
    known = np.array([value for value in values if not math.isnan(value)])
    if len(known) < 2:
        return "-" if not len(known) else f"{known[0]:.4g}"
    half = student(0.95, len(known) - 1) * known.std(ddof=1) / math.sqrt(len(known))
    return f"{known.mean():.4g} ± {half:.2g}"
