"""Reports: what is drawn is what runs left behind, and what is wrong with them is said."""

import copy
import json
import math
import os
import re
import shutil
import subprocess
import sys
from html import unescape

import numpy as np
import pytest
from support import EXAMPLES
from support.browser import dom

from motet.cli import main
from motet.errors import SettingError
from motet.reports.report import report
from motet.runs.directory import RunDirectory
from motet.runs.history import interval, read_run, thinned
from motet.runs.status import hold

CONFIG = {
    "format": 1,
    "motet": "0.1.0",
    "world": {"path": "motet.worlds.treasure_hunt:TreasureHunt", "settings": {"agents": 2}},
    "agents": {
        name: {"class": "motet.algorithms.dqn:DQNConfig", "gamma": 0.9, "hidden": [8]} for name in ("left", "right")
    },
    "settings": {"class": "motet.train:Settings", "steps": 1000, "seed": 0, "engine": "processes"},
    "versions": {"motet": "0.1.0", "python": "3.11.7", "numpy": "2.0", "torch": "2.6"},
}


def look(steps, seconds, returns=(1.0, 2.0), state="running", restarts=0, broken=0, **more):
    agents = [
        {
            "name": name,
            "steps": steps,
            "updates": steps // 2,
            "episodes": int(10 * seconds),
            "mean_return": value,
            "mean_length": 10.0,
            "steps_per_s": 100.0,
            "updates_per_s": 50.0,
            "replay_fill": steps / 1000,
            "updates_per_step": 0.125,
            "samples_per_row": 4.0,
            "version": steps // 20,
            "lag_versions": 1,
            "lag_steps": 7,
            "broken": broken,
            "metrics": {"loss": 1 / (1 + steps)},
        }
        for name, value in zip(("left", "right"), returns, strict=True)
    ]
    processes = [
        {"name": "actor-0", "pid": 1, "waits_for": "", "beat_s": 0.1, "restarts": restarts, "done": False},
        {"name": "learner-0", "pid": 2, "waits_for": "", "beat_s": 0.1, "restarts": 0, "done": False},
    ]
    plain = {"seconds": seconds, "steps": steps, "limit": 1000, "steps_per_s": 100.0, "left_s": None}
    return plain | {"agents": agents, "processes": processes, "state": state} | more


def course(slope=1.0, end=1000, state="done"):
    snapshots = [look(s, s / 100, (slope * s, 2 * slope * s)) for s in range(100, end, 100)]
    return [*snapshots, look(end, end / 100, (slope * end, 2 * slope * end), state=state)]


def write(path, snapshots, evaluations=(), **changes):
    config = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        (config["agents"]["left"] if key == "gamma" else config["settings"])[key] = value
    (path / "logs").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in snapshots))
    if snapshots:
        (path / "status.json").write_text(json.dumps(snapshots[-1]))
    lines = [
        {
            "step": step,
            "seconds": step / 100,
            "episodes": 5,
            "team": value,
            "agents": {name: {"mean": value / 2, "std": 1.0, "version": 1} for name in ("left", "right")},
        }
        for step, value in evaluations
    ]
    if lines:
        (path / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def words(path):
    """The text of a page, without its style and its behaviour."""
    text = re.sub(r"<(style|script)>.*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.S)
    return unescape(re.sub(r"<[^>]*>", "\n", text))


def charts(path):
    """What is told of each curve, by title of its chart."""
    found = {}
    for figure in path.read_text(encoding="utf-8").split('<figure class="chart">')[1:]:
        title = unescape(re.search("<strong>(.*?)</strong>", figure)[1])
        told = re.search('data-chart="([^"]*)"', figure)
        found[title] = {line["n"]: line for line in json.loads(unescape(told[1]))["s"]} if told else {}
    return found


@pytest.fixture
def seeds(tmp_path):
    return [write(tmp_path / f"seed{i}", course(slope=s), seed=i) for i, s in enumerate((1.0, 2.0, 6.0))]


def test_seeds_of_one_experiment_are_one_curve_with_its_interval(seeds, tmp_path):
    made = report(seeds, tmp_path / "out.html")
    assert made.groups == {"all runs": seeds} and not made.refused and not made.problems
    found = charts(made.path)
    team = found["Team return over steps"]["all runs"]
    mean, low, high = interval(np.array([3.0, 6.0, 18.0]))  # of the slopes of both agents together
    for x, y, under, over in zip(team["x"], team["y"], team["l"], team["h"], strict=True):
        assert y == pytest.approx(mean * x, rel=1e-4)
        assert under == pytest.approx(low * x, rel=1e-3) and over == pytest.approx(high * x, rel=1e-3)
    assert set(found["Return of each agent"]) == {"left", "right"}
    assert found["Return of each agent"]["right"]["y"][-1] == pytest.approx(2 * 3 * 1000)
    assert found["Team return over time"]["all runs"]["x"][-1] == 10
    ratio = found["Samples per row"]["left"]
    assert set(ratio["y"]) == set(ratio["l"]) == set(ratio["h"]) == {4.0}
    assert {"Policy lag", "Steps since the newest version", "Steps per second", "Replay fill", "loss"} <= set(found)
    text = words(made.path)
    assert "1 group of 3 runs" in text and "equal settings except for the seed" in text
    assert "No process was restarted." in text and "seed0" in text


def test_the_interval_uses_students_t():
    values = np.array([[1.0], [2.0], [3.0], [4.0], [10.0]])
    mean, low, high = interval(values)
    half = 2.77645 * values.std(ddof=1) / math.sqrt(5)  # a table's value for four degrees of freedom
    assert (mean, low, high) == pytest.approx((4.0, 4.0 - half, 4.0 + half), rel=1e-4)
    assert [float(v[0]) for v in interval(values[:2])] == [1.5, 1.0, 2.0]
    assert [float(v[0]) for v in interval(values[:1])] == [1.0, 1.0, 1.0]
    many = np.random.default_rng(0).normal(size=(400, 1))
    assert (interval(many)[2] - interval(many)[0]).item() == pytest.approx(1.966 * many.std(ddof=1) / 20, rel=1e-3)


def test_runs_that_differ_are_groups_beside_each_other(tmp_path):
    paths = [write(tmp_path / f"g{g}s{s}", course(), gamma=g, seed=s) for g in (0.9, 0.5) for s in (0, 1)]
    made = report(paths, tmp_path / "out.html")
    assert made.groups == {"gamma 0.9": paths[:2], "gamma 0.5": paths[2:]}
    assert set(charts(made.path)["Team return over steps"]) == set(made.groups)
    text = words(made.path)
    assert (
        "Settings that differ between groups" in text
        and "agents.left.gamma" in text
        and "agents.right.gamma" not in (text.split("Settings that differ between groups")[1].split("Learning")[0])
    )
    assert "2 groups of 2 runs and 2 runs" in text


def test_only_the_seed_may_differ(tmp_path):
    one = write(tmp_path / "one", course(), seed=1)
    two = write(tmp_path / "two", course(), seed=2, steps=2000)
    three = write(tmp_path / "three", course(), seed=3, keep=True)
    made = report([one, two, three], tmp_path / "out.html")
    assert [len(paths) for paths in made.groups.values()] == [1, 1, 1]
    assert set(made.groups) == {"steps 1000, keep -", "steps 2000, keep -", "steps 1000, keep yes"}


def test_groups_can_be_named(tmp_path, capsys):
    paths = [write(tmp_path / f"g{g}", course(), gamma=g) for g in (0.9, 0.5)]
    out = str(tmp_path / "out.html")
    assert main(["report", *map(str, paths), "--out", out, "--names", "far-sighted", "short-sighted"]) == 0
    assert "short-sighted: " in capsys.readouterr().out
    assert set(charts(tmp_path / "out.html")["Team return over steps"]) == {"far-sighted", "short-sighted"}
    with pytest.raises(
        SettingError, match=r"names must be one for each of the 2 groups \(gamma 0.9; gamma 0.5\), got 1"
    ):
        report(paths, out, names=["one"])
    with pytest.raises(SettingError, match="names must be different and not empty, got 'x', 'x'"):
        report(paths, out, names=["x", "x"])


def test_a_setting_that_was_not_given_has_its_default(tmp_path):
    paths = [write(tmp_path / f"r{i}", course(), seed=i) for i in range(3)]
    for path, size in zip(paths[1:], (21, 7), strict=True):
        config = json.loads((path / "config.json").read_text())
        config["world"]["settings"]["size"] = size
        (path / "config.json").write_text(json.dumps(config))
    made = report(paths, tmp_path / "out.html")
    assert made.groups == {"size 21": paths[:2], "size 7": paths[2:]}, "21 is the default of TreasureHunt"
    for path in paths:
        config = json.loads((path / "config.json").read_text())
        config["world"]["path"] = "my_module:MyWorld"
        (path / "config.json").write_text(json.dumps(config))
    made = report(paths, tmp_path / "out.html")
    assert list(made.groups) == ["size default", "size 21", "size 7"], "a report does not run code outside of motet"


def test_long_names_list_only_what_tells_groups_apart(tmp_path):
    more = {"steps": 2000, "actors": 3, "worlds_per_actor": 17, "checkpoint_every": 12_345}
    one, two = write(tmp_path / "one", course()), write(tmp_path / "two", course(), **more)
    assert set(report([one, two], tmp_path / "out.html").groups) == {"steps 1000", "steps 2000"}


def test_charts_of_one_value_are_folded(seeds, tmp_path):
    text = report(seeds, tmp_path / "out.html").path.read_text()
    folded = re.search(r"<summary>(Constant: .*?)</summary>(.*?)</details>", text, re.S)
    assert folded[1].startswith("Constant: Updates per step 0.125, Samples per row 4, Policy lag 1,")
    assert "<strong>Samples per row</strong>" in folded[2] and "<strong>Replay fill</strong>" not in folded[2]


def test_runs_without_common_time_are_named(tmp_path):
    early = [look(s, s / 100) for s in (100, 200)]
    late = [look(s, 50 + s / 100) for s in (100, 200)]
    paths = [write(tmp_path / f"r{i}", one, seed=i) for i, one in enumerate((early, late))]
    paths.append(write(tmp_path / "other", course(), gamma=0.5))
    paths.append(write(tmp_path / "last", [look(s, 500 + s / 100) for s in (100, 200)], gamma=0.1))
    text = words(report(paths, tmp_path / "out.html").path)
    assert "There is no mean for gamma 0.9: the runs have no time in common." in text
    assert "The groups have no time in common." in text and "no steps in common" not in text


def test_worlds_of_scripts_are_distinguished_by_name_not_by_address(tmp_path):
    for i, (name, address) in enumerate([("make", "0x7f01"), ("make", "0x7f02"), ("other", "0x7f01")]):
        path = write(tmp_path / f"r{i}", course(), seed=i)
        config = json.loads((path / "config.json").read_text())
        config["world"] = {"path": None, "given": f"<function {name}.<locals>.<lambda> at {address}>", "why": "x"}
        (path / "config.json").write_text(json.dumps(config))
    made = report(sorted(tmp_path.glob("r?")), tmp_path / "out.html")
    assert [len(paths) for paths in made.groups.values()] == [2, 1]


def test_a_running_run_is_reported_as_running(seeds, tmp_path):
    shutil.rmtree(seeds[1])
    write(seeds[1], course(end=400, state="running"), seed=1)
    with hold(seeds[1]):
        text = words(report(seeds, tmp_path / "out.html").path)
    assert "seed1 is still running: 400 of 1,000 steps" in text
    assert "The means of all runs end at 400 steps, where seed1 ends" in text
    found = charts(tmp_path / "out.html")["Team return over steps"]["all runs"]
    known = [x for x, y in zip(found["x"], found["y"], strict=True) if y is not None]
    assert max(known) <= 400 < max(found["x"]), "no mean where a run is missing"
    text = words(report(seeds, tmp_path / "out.html").path)
    assert "seed1 crashed after 400 steps" in text


def test_a_run_without_metrics_is_named(seeds, tmp_path):
    new = write(tmp_path / "new", [], seed=9)
    made = report([*seeds, new], tmp_path / "out.html")
    assert made.problems == {new: ["it has no metrics"]} and "new: it has no metrics." in words(made.path)
    assert [len(paths) for paths in made.groups.values()] == [4]
    with hold(new):
        assert "it has no metrics yet" in words(report([new], tmp_path / "alone.html").path)


def test_damage_is_named_and_the_rest_is_shown(seeds, tmp_path):
    path = seeds[0] / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = lines[2][:100]
    lines[4] = json.dumps({**json.loads(lines[4]), "steps": "many"})
    lines[5] = json.dumps({**json.loads(lines[5]), "agents": 3})
    lines[6] = "\0" * 20
    path.write_text("\n".join(lines) + "\n" + lines[0][:50])  # the last one is being written
    (seeds[0] / "evaluation.jsonl").write_text('{"step": 3}\n')
    (seeds[1] / "status.json").write_text("{")
    (seeds[2] / "episode.gif").write_bytes(b"no picture")
    made = report(seeds, tmp_path / "out.html")
    text = words(made.path)
    assert "seed0: metrics.jsonl: line 3 and 3 more are ignored as unreadable" in text
    assert "seed0: evaluation.jsonl: line 1 is ignored" in text
    assert "status.json cannot be read" in text and "the last line of metrics.jsonl is shown instead" in text
    assert "episode.gif cannot be shown" in text
    assert len(read_run(seeds[0]).curves) == 6
    assert set(made.problems) == set(seeds[:2])


def test_runs_that_cannot_be_read_are_refused_by_name_and_the_rest_is_shown(seeds, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    future = write(tmp_path / "future", course())
    (future / "config.json").write_text(json.dumps({**CONFIG, "format": 99}))
    broken = write(tmp_path / "broken", course())
    (broken / "config.json").write_text("{")
    odd = write(tmp_path / "odd", course())
    (odd / "config.json").write_text(json.dumps({"format": 1}))
    given = [*seeds, tmp_path / "empty", future, broken, odd, tmp_path / "nowhere", tmp_path]
    assert main(["report", *map(str, given), "--out", str(tmp_path / "out.html")]) == 1
    out, err = capsys.readouterr()
    text = words(tmp_path / "out.html")
    for said in (err, text):
        assert "run must be a run directory, got" in said and "empty'" in said and "nowhere'" in said
        assert "has format 99, this motet" in said and "broken/config.json cannot be read" in said
        assert "odd' has a config.json without world" in said and "it contains 6 runs" in said
    assert err.count("not shown: ") == text.count("Not shown: ") == 6
    assert "seed0" in out and "out.html" in out
    with pytest.raises(SettingError, match=r"future.*format 99"):
        report([future], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_invalid_requests_are_refused(seeds, tmp_path, capsys):
    with pytest.raises(SettingError, match="runs must be one run directory or more, got none"):
        report([], tmp_path / "out.html")
    link = tmp_path / "link"
    link.symlink_to(seeds[0])
    with pytest.raises(SettingError, match="runs must be different, got"):
        report([seeds[0], link], tmp_path / "out.html")
    with pytest.raises(SettingError, match="ending in"):
        report(seeds, seeds[0] / "config.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot be written"):
        report(seeds, tmp_path / "file" / "out.html")
    assert main(["report", str(seeds[0]), str(seeds[0])]) == 2
    assert "runs must be different, got" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "seed0", "seed1", "seed2"]


def test_a_resumed_run_is_one_run(tmp_path):
    first = [look(s, s / 100, (1.0, 1.0), restarts=2, broken=1) for s in (100, 200, 300, 400)]
    second = [look(s, (s - 200) / 100, (5.0, 5.0), restarts=1, broken=3) for s in (250, 350, 450)]
    third = [look(500, 0.5, (7.0, 7.0), state="done", restarts=0, broken=0)]
    second[-1]["state"] = "stopped"
    path = write(tmp_path / "run", [*first, *second, *third], evaluations=[(100, 1.0), (300, 2.0), (200, 9.0)])
    run = read_run(path)
    assert run.sessions == 3 and run.restarts == {"actor-0": 3, "learner-0": 0}
    assert run.curves.team["steps"].tolist() == [100, 200, 250, 350, 450, 500], "a future that was given up is left out"
    assert run.curves.agents["left"]["mean_return"].tolist() == [1, 1, 5, 5, 5, 7]
    assert run.seconds == 4 + 2.5 + 0.5
    assert run.counters["left"]["broken"] == 3, "a counter that goes on is not counted twice"
    assert run.counters["left"]["episodes"] == 40 + 25 + 5, "one that begins again is"
    assert run.evaluations.team["steps"].tolist() == [100, 200]


def test_a_session_that_plays_more_than_the_one_before_is_counted_whole(tmp_path):
    snapshots = [look(100, 1.0, (1.0, 1.0), state="done"), look(400, 4.0, (1.0, 1.0), state="done")]
    run = read_run(write(tmp_path / "run", snapshots))
    assert run.sessions == 2 and run.counters["left"]["episodes"] == 10 + 40


def test_report_shows_restarts_counters_and_the_log(tmp_path):
    path = write(tmp_path / "run", [look(100, 1), look(1000, 10, restarts=4, broken=2, state="failed")])
    (path / "logs" / "run.log").write_text("2026-01-01 actor-0 was killed by SIGKILL; <b>its</b> successor starts\n")
    text = words(report([path], tmp_path / "out.html").path)
    faults = text.split("Faults and counters")[2]
    assert re.search(r"actor-0\s+4", faults) and not re.search(r"learner-0\s+0", faults)
    assert re.search(r"left\s+2", faults) and "broken" in faults
    assert "<b>its</b> successor" in faults and "Log of run (1 line)" in faults
    assert "run failed after 1,000 steps" in text


def test_evaluations_over_time(tmp_path):
    paths = [
        write(tmp_path / f"s{i}", course(), [(s, s * (i + 1)) for s in (100, 400, 1000)], seed=i) for i in range(2)
    ]
    found = charts(report(paths, tmp_path / "out.html").path)
    team = found["Evaluated team return"]["all runs"]
    assert team["k"] == "c0 dots" and team["x"] == [100, 400, 1000], "a dot for each evaluation"
    assert team["y"][-1] == 1500 and (team["l"][-1], team["h"][-1]) == (1000, 2000), "of two runs both"
    alone = charts(report(paths[:1], tmp_path / "one.html").path)["Evaluated return of each agent"]["left"]
    half = 2.776 * 1.0 / 2  # five episodes with a deviation of 1
    assert (
        alone["k"] == "c0 dots"
        and alone["y"] == [50, 200, 500]
        and alone["h"] == pytest.approx([50 + half, 200 + half, 500 + half], rel=1e-4)
    )


def test_evaluations_at_nearly_the_same_step_belong_together(tmp_path):
    given = [[(100, 1.0), (203, 2.0), (301, 3.0)], [(104, 3.0), (198, 6.0), (297, 9.0), (402, 9.0)]]
    paths = [write(tmp_path / f"s{i}", course(), one, seed=i) for i, one in enumerate(given)]
    team = charts(report(paths, tmp_path / "out.html").path)["Evaluated team return"]["all runs"]
    assert (team["x"], team["y"]) == ([100, 203, 301], [2, 4, 6])


def test_runs_that_may_not_belong_together_are_reported(tmp_path):
    one, two = (write(tmp_path / name, course(), seed=3) for name in ("one", "two"))
    config = json.loads((two / "config.json").read_text())
    config["versions"]["torch"] = "9.9"
    config["fell_back"] = "no process could be started"
    (two / "config.json").write_text(json.dumps(config))
    text = words(report([one, two], tmp_path / "out.html").path)
    assert "one and two have the same seed (3) but count as separate runs" in text
    assert "runs with different versions of torch: 2.6 and 9.9" in text
    assert "two fell back to the serial engine: no process could be started" in text


def test_runs_of_the_same_name_get_distinct_names(tmp_path):
    paths = [write(tmp_path / folder / "run", course(), seed=i) for i, folder in enumerate("ab")]
    text = words(report(paths, tmp_path / "out.html").path)
    assert "a/run" in text and "b/run" in text


def test_equal_runs_give_equal_pages_and_are_not_touched(seeds, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    one = report(seeds, tmp_path / "one.html").path.read_bytes()
    assert one == report(seeds, tmp_path / "two.html").path.read_bytes()
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: data for path, data in after.items() if path.suffix != ".html"} == before


def test_long_curves_are_thinned_and_keep_their_ends():
    x = np.arange(100_000.0)
    xs, ys = thinned(x, x * 2)
    assert len(xs) <= 240 and (xs[0], xs[-1]) == (0, 99_999) and (ys == 2 * xs).all()
    xs, ys = thinned(np.array([1.0, 1.0, 2.0, 3.0]), np.array([0.0, 5.0, np.nan, 6.0]))
    assert xs.tolist() == [1, 3] and ys.tolist() == [5, 6]


def test_names_from_a_run_are_text(tmp_path):
    evil = "<img src=x onerror=alert(1)>\x1b[2J"
    snapshots = [look(s, s / 100) for s in (100, 1000)]
    for one in snapshots:
        one["agents"][0]["name"] = one["processes"][0]["name"] = one["state"] = evil
        one["agents"][0]["metrics"] = {evil: 1.0}
        one["processes"][0]["restarts"] = 1
    path = write(tmp_path / "<b>run", snapshots, seed=evil)
    made = report([path], tmp_path / "out.html").path.read_text(encoding="utf-8")
    assert "<img src=x" not in made and "&lt;img src=x" in made and "<b>run" not in made and "\x1b" not in made


def test_a_trained_run_in_a_browser(tmp_path):
    flags = ["--engine", "serial", "--dqn.hidden", "8", "--dqn.batch-size", "8", "--dqn.min-rows", "16"]
    for seed in range(2):
        run = ["--steps", "100", "--seed", str(seed), "--run", str(tmp_path / f"run{seed}")]
        assert main(["train", "treasure_hunt", "--world.size", "7", "--world.turns", "10", *flags, *run]) == 0
    out = tmp_path / "page" / "out.html"
    assert main(["report", str(tmp_path / "run0"), str(tmp_path / "run1"), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.count("data:image/gif;base64,") == 2 and "TreasureHunt" in text
    made = dom(text, tmp_path)
    assert 'data-ready="yes"' in made and "data-error" not in made


def test_the_example_reports(tmp_path):
    example = EXAMPLES / "report.py"
    assert len(example.read_text().splitlines()) <= 60
    done = subprocess.run(
        [sys.executable, example, "200"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "2 groups" in done.stdout
    (page,) = tmp_path.rglob("report.html")
    assert "Team return over steps" in page.read_text()


def test_the_run_directory_that_is_written_can_be_read(tmp_path):
    directory = RunDirectory.prepare(tmp_path / "run").begin(
        {key: CONFIG[key] for key in ("world", "agents", "settings")}
    )
    for one in course():
        directory.append_line("metrics.jsonl", one)
    assert len(read_run(directory.path).curves) == 10
