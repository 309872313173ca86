"""The display of a run, in terminals of usual sizes."""

import io
import re
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from motet.runs.display import History, Lines, Live, clock, display, frame, line, short, sparkline
from motet.runs.sinks import Feed, TensorBoard, Wandb, scalars
from motet.runs.snapshot import AgentRow, ProcessRow, Snapshot
from motet.runs.status import snapshot_from


def snapshot(t=10.0, agents=2, steps=None, *, waits="", beat_s=0.1, restarts=0, state="running", reward=50.0):
    steps = int(t * 1000) if steps is None else steps
    rows = [
        AgentRow(
            name=f"agent_{i}",
            steps=steps,
            updates=int(t * 100),
            episodes=int(t * 10),
            mean_return=reward + i,
            mean_length=100.0,
            steps_per_s=1234.5,
            updates_per_s=98.7,
            replay_fill=0.42,
            updates_per_step=0.1,
            samples_per_row=8.0,
            version=int(t * 10),
            lag_versions=17,
            lag_steps=120,
            broken=0,
            metrics={"loss": 0.0123},
            restarts=restarts,
        )
        for i in range(agents)
    ]
    processes = [
        ProcessRow("actor-0", 11, "", 0.1, 0, False),
        ProcessRow("learner-0", 12, waits, beat_s, restarts, False),
    ]
    return Snapshot(t, steps, 100_000, 1234.5, 72.0, rows, processes, state)


def text_of(renderable, width=80, **more):
    console = Console(file=io.StringIO(), width=width, highlight=False, **more)
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("agents", [1, 2, 4, 10])
def test_frame_fits_and_names_everything(width, agents):
    history = History()
    for t in range(1, 30):
        history.add(snapshot(float(t), agents, reward=float(t * t)))
    text = text_of(frame(snapshot(30.0, agents), history, "title", width), width)
    assert "▁" in text and "█" in text and "restarts" not in text
    text = text_of(frame(snapshot(30.0, agents, restarts=2), history, "title", width), width)
    assert "▁" in text and "█" in text, "the trend stays after a restart"
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 1 + 1 + agents + (agents > 1) + 1 + 1
    for word in ("return", "loss", "steps/s", "upd/s", "replay", "version", "lag", "restarts"):
        assert word in lines[1]
    assert all(re.search(rf"agent_{i}\b.* 2 *$", text, re.M) for i in range(agents)), "restarts of each agent"
    assert all(f"agent_{i}" in text for i in range(agents))
    for value in ("0.012", "1.23k", "98.7", "42%", "17", "30,000 of 100,000 steps", "30%", "left", "(2 restarts)"):
        assert value in text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("width", [32, 40, 50, 60, 70, 100, 110, 116])
@pytest.mark.parametrize("restarts", [0, 2])
def test_a_narrow_terminal_shows_fewer_columns_and_these_whole(width, restarts):
    history = History()
    history.add(snapshot(29.0, 3, restarts=restarts))
    text = text_of(frame(snapshot(30.0, 3, restarts=restarts), history, "", width, processes=False), width)
    *table, progress = text.splitlines()
    assert all(len(line) <= width and "…" not in line for line in table)
    assert table[0].split()[:2] == ["agent", "return"] and ("restarts" in table[0]) == bool(restarts)
    assert [line.split()[0] for line in table[1:]] == ["agent_0", "agent_1", "agent_2", "total"]
    assert "30,000 of 100,000 steps" in progress and len(progress) <= width


def test_waiting_for_the_next_evaluation_is_no_news():
    history = History()
    for t in range(30):
        now = snapshot(float(t), 1, waits="its next evaluation")
        history.add(now)
    assert "○" in text_of(frame(now, history, "title", 80)) and "evaluation" not in text_of(frame(now, history, "", 80))
    assert "learner-0" not in line(now, history)


@pytest.mark.parametrize("width", [80, 120])
def test_rows_that_are_lost_or_refused_are_shown(width):
    history, now = History(), snapshot(30.0, 2, restarts=2)
    assert "lost" not in text_of(frame(now, history, "title", width), width) + line(now, history)
    now.agents[0].lost, now.agents[1].lost, now.agents[1].refused = 1200, 34, 5
    text = text_of(frame(now, history, "title", width), width)
    assert max(map(len, text.splitlines())) <= width
    assert ("1,234 rows lost, 5 rows refused" in text) is (width == 80)
    assert (re.search(r"lost +refused", text) is not None) is (width == 120)
    assert "| 2 restarts | 1,234 rows lost | 5 rows refused" in line(now, history)


def test_frame_of_many_agents_is_cut_to_the_terminal():
    history = History()
    text = text_of(frame(snapshot(5.0, 40), history, "title", 80, 24))
    assert len(text.splitlines()) <= 24 and "more agents" in text and "steps" in text


def test_frame_in_ascii_has_nothing_else():
    history = History()
    for t in range(10):
        history.add(snapshot(float(t), reward=float(t)))
    part = frame(snapshot(10.0), history, width=80, ascii_only=True)
    console = Console(file=io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict"), width=80)
    console.print(part)  # would raise


def test_display_names_long_waits_but_not_short_ones_or_the_pace():
    history = History()
    for t in range(10):
        history.add(snapshot(float(t), waits="rows to learn from"))
    assert "waits for rows to learn from, 9 s" in line(snapshot(9.0, waits="rows to learn from"), history)
    history = History()
    history.add(snapshot(0.0, waits="rows to learn from"))
    assert "waits" not in line(snapshot(1.0, waits="rows to learn from"), history)
    for steps, told in ((None, False), (500, True)):  # the run goes on; the run stands still
        history = History()
        for t in range(10):
            paced = snapshot(float(t), steps=steps, waits="the actors (pace)")
            for row in paced.agents:
                row.updates = 5 if steps else row.updates
            history.add(paced)
        assert ("waits for the actors (pace)" in line(paced, history)) is told


def test_advice_is_shown_while_the_run_is_running():
    advised = {state: replace(snapshot(state=state), bottleneck="raise actors") for state in ("running", "done")}
    shown = {state: "raise actors" in text_of(frame(one, History())) for state, one in advised.items()}
    assert shown == {"running": True, "done": False}


def test_display_marks_a_process_without_heartbeat():
    assert "learner-0 no heartbeat for 12 s" in line(snapshot(beat_s=12.0), History())
    assert "no heartbeat" not in line(snapshot(beat_s=12.0, state="done"), History())


def test_time_left_is_of_the_last_looks_and_survives_a_resumption():
    history = History()
    for t in range(5):
        history.add(snapshot(float(t), steps=t * 2000))
    assert history.left_s(snapshot(4.0, steps=8000)) == pytest.approx(46.0)
    history.add(snapshot(1.0, steps=9000))
    history.add(snapshot(2.0, steps=10_000))
    assert history.left_s(snapshot(2.0, steps=10_000)) == pytest.approx(90.0)


def test_time_left_is_not_estimated_while_processes_start():
    history = History()
    for seconds, steps in ((1.0, 0), (2.0, 0), (3.0, 100)):
        history.add(snapshot(seconds, steps=steps))
        assert history.left_s(snapshot(seconds, steps=steps)) is None
    history.add(snapshot(4.0, steps=1100))
    assert history.left_s(snapshot(4.0, steps=1100)) == pytest.approx(98.9)


@pytest.mark.parametrize("state", ["done", "stopped"])
def test_the_time_of_a_resumed_run_counts_from_the_resumption(state):
    history = History()
    history.add(snapshot(50.0, steps=8000))
    word = "in" if state == "done" else "after"
    assert f"{state} {word} 0:50" in text_of(frame(snapshot(50.0, state=state), history))
    history.resume()
    history.add(snapshot(3.0, steps=9000))
    assert f"{state} 0:03 after resuming" in text_of(frame(snapshot(3.0, state=state), history))


def test_lines_are_written_more_rarely_in_long_runs_and_always_at_the_end():
    console = Console(file=io.StringIO(), width=80)
    lines = Lines(console, "title")
    for t in range(2000):
        lines.show(snapshot(float(t)))
    lines.say("learner-0 was killed")
    lines.show(snapshot(2000.0, state="done"))
    lines.close()
    written = console.file.getvalue().splitlines()
    assert written[0] == "title" and written[-2] == "learner-0 was killed" and written[-1].endswith("done")
    times = [int(text.split("|")[0].strip().split(":")[0]) for text in written[1:-2]]
    assert 20 < len(times) < 120 and times[-1] >= 32
    assert all(len(text.splitlines()) == 1 for text in written)


def test_live_leaves_the_last_picture_with_events_above():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    live = Live(console, "title")
    live.show(snapshot(1.0))
    live.say("learner-0 was killed")
    live.show(snapshot(2.0, state="done"))
    live.close()
    text = console.file.getvalue()
    assert text.rindex("learner-0 was killed") < text.rindex("agent_0") and "done in 0:02" in text


def test_the_display_fits_where_it_goes():
    assert isinstance(display("table", console=Console(file=io.StringIO())), Lines)
    shown = display("table", console=Console(file=io.StringIO(), force_terminal=True))
    shown.close()
    assert isinstance(shown, Live)


def test_small_functions():
    assert [short(value) for value in (0.0, 999.6, 1e6, float("nan"), 7.0, 1234567.0)] == [
        *("0", "1.00k", "1.00M", "nan", "7", "1.23M")
    ]
    assert [clock(value) for value in (59.6, 3600, float("inf"))] == ["1:00", "1:00:00", "-"]
    assert len(sparkline(range(1000), 8)) == 8 and sparkline([float("nan"), 1.0], 8) == "▁"


# ---- sinks


def test_a_failing_sink_is_reported_once_and_delays_nothing():
    said = []
    feed = Feed("a sink", said.append)

    def job():
        raise OSError("disk full")

    for _ in range(3):
        feed.put(job)
    feed.close()
    assert said == ["a sink failed and is now turned off: OSError: disk full"]


def test_a_sink_that_hangs_is_left_behind():
    said, gate = [], threading.Event()
    feed = Feed("a sink", said.append)
    feed.put(lambda: gate.wait(30) and None)
    for _ in range(2000):
        feed.put(lambda: None)  # never waits
    feed.close(timeout_s=0.01)
    gate.set()
    assert said == ["a sink did not finish within 0.01 s; snapshots not written yet are lost"]


def test_tensorboard_gets_every_number(tmp_path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    sink = TensorBoard(tmp_path)
    sink.write(snapshot(3.0))
    sink.close()
    (path,) = tmp_path.iterdir()
    found = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            found[value.tag] = (event.step, value.tensor.float_val[0])
    expected = dict(scalars(snapshot(3.0)))
    assert set(found) == set(expected) and "return/agent_1" in found and "train/loss.agent_0" in found
    assert found["return/agent_1"] == (3000, pytest.approx(51.0))


def test_wandb_works_offline_without_a_login(tmp_path, monkeypatch):
    import sys
    import types

    logged, asked, said = [], {}, []

    class Run:
        def log(self, values, step):
            logged.append((step, values))

        def finish(self):
            logged.append("finished")

    def init(**given):
        asked.update(given)
        return Run()

    module = types.ModuleType("wandb")
    module.init, module.Settings = init, dict
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    sink = Wandb(tmp_path / "my-run", {"seed": 1}, said.append)
    sink.write(snapshot(1.0))
    sink.close()
    assert asked["mode"] == "offline" and asked["name"] == "my-run" and asked["config"] == {"seed": 1}
    assert "offline" in said[0] and logged[0][0] == 1000 and logged[-1] == "finished"


def test_numbers_of_a_column_have_the_same_decimals():
    now = snapshot(30.0, 3)
    for row, value in zip(now.agents, (9.0, -13.14, 0.5), strict=True):
        row.mean_return, row.evaluated = value, value / 10
    head, *rows = text_of(frame(now, History(), "", 100, processes=False), 100).splitlines()[:5]
    assert head.split()[:3] == ["agent", "return", "eval"]
    assert [row.split()[1:3] for row in rows] == [
        ["9.0", "0.90"],
        ["-13.1", "-1.31"],
        ["0.5", "0.05"],
        ["-3.6", "-0.36"],
    ]
    assert "| eval -0.364" in line(now, History())


def test_without_evaluations_there_is_no_column_for_them():
    assert "eval" not in text_of(frame(snapshot(3.0), History())) + line(snapshot(3.0), History())


def test_the_lag_is_that_of_the_version_in_use():
    head, row, *_ = text_of(frame(snapshot(30.0, 1), History(), "", 100, processes=False), 100).splitlines()
    assert row.split()[head.split().index("lag") - 1] == "17" or "17" in row.split()
    assert "120" not in row.split(), "not the steps since the newest publication"


@pytest.mark.parametrize("steps", [30_000, 100_000])
def test_progress_is_in_no_colour_of_warnings(steps):
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    console.print(frame(snapshot(30.0, 1, steps=steps), History(), "", 80, processes=False))
    bar = next(row for row in console.file.getvalue().splitlines() if "of 100,000" in row)
    assert re.findall(r"\x1b\[([\d;]+)m━", bar)[0] == ("36" if steps < 100_000 else "32"), "cyan, and green at the end"


def test_tags_are_in_groups_and_bookkeeping_stays_out():
    now = snapshot(3.0, 4)
    for i, row in enumerate(now.agents):
        row.evaluated, row.metrics = 10.0 + i, {"loss": 1.0, "epsilon": i / 2, "rows_overwritten_unread": 3.0}
    tags = dict(scalars(now))
    assert tags["return/team"] == 50 + 51 + 52 + 53 and tags["train/epsilon.agent_3"] == 1.5
    assert tags["speed/updates_per_step"] == pytest.approx(0.1) and tags["speed/samples_per_row"] == 8.0
    groups = {tag.partition("/")[0] for tag in tags}
    assert groups == {"return", "length", "train", "speed", "system"}
    assert sorted(groups)[-1] == "train", "pages sort groups, and what a run is judged by comes first"
    system = {tag.partition("/")[2].partition(".")[0] for tag in tags if tag.startswith("system/")}
    assert system == {"lag_versions", "lag_steps", "replay_fill", "forced", "rows_overwritten_unread", "restarts"}
    assert "return/team" not in dict(scalars(snapshot(3.0, 1)))
    rates = {"speed/steps_per_s", "speed/episodes_per_s", "speed/updates_per_s"}
    assert rates <= set(tags) and not rates & set(dict(scalars(snapshot(3.0, state="done"))))


def test_plain_lines_show_episodes_updates_and_replay_fill():
    text = line(snapshot(3.0), History())
    assert "| 30 episodes | 600 updates |" in text and "| replay 42% |" in text


def test_snapshots_of_older_runs_are_read():
    plain = snapshot(3.0).as_dict()
    for row in plain["agents"]:
        del row["updates_per_step"]
        row["replay_ratio"] = row.pop("samples_per_row")
    found = snapshot_from(plain)
    assert [row.samples_per_row for row in found.agents] == [8.0, 8.0]
    assert [row.updates_per_step for row in found.agents] == [0.1, 0.1]
