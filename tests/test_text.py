"""Names and messages of policies, worlds and agents are data: they break no output, and are not lost."""

import contextlib
import io
import json
import re
import sys
import types
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import motet
from motet.cli import command as cli
from motet.cli import eval as eval_command
from motet.cli import status as status_command
from motet.cli import tournament as tournament_command
from motet.cli.play import Play, finish, tell_who_always_failed, yaml
from motet.errors import ChildError
from motet.evaluation.episode import Failure
from motet.evaluation.latency import LatencyHistogram
from motet.evaluation.result import Episode, Evaluation, Measured
from motet.evaluation.tournament import Tournament
from motet.reports import summary as _summary
from motet.runs import display as _display
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.runs.history import Curves
from motet.runs.show import Show
from motet.runs.sinks import TensorBoard, Wandb, scalars
from motet.runs.snapshot import AgentRow, ProcessRow, Snapshot
from motet.system.files import file_stems
from motet.system.raised import printable
from motet.text import label, plain, plain_lines, valid
from motet.training.run import Result

ODD = [
    "team[a]",
    "[/red]",
    "[link=x]",
    "[bold]x[/bold]",
    "\\[a]",
    ":bug:",
    "\ud800",
    "\ud83d\ude00",
    "two\nlines\r\n",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "\0",
    "",
    "   ",
    "\u202egnp.exe",
    "\u200b",
    "x" * 300,
    "<script>alert(1)</script>",
    "&amp;\"'",
    "$\\frac$",
    "_hidden",
    "%s {0}",
    "../../etc",
    "日本語",
    "🦊",
    "e\u0301",
]
odd = st.sampled_from(ODD) | st.text(st.characters(), max_size=30)
FEW = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # what fails has been chosen, or is short
    suppress_health_check=list(HealthCheck),
)
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def printed(print_it, width=6000, terminal=False):
    """What goes to a terminal, or a pipe, that takes proper UTF-8 and nothing else; standard error apart."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True) for _ in range(2)]
    for stream in streams:
        stream.isatty = lambda: terminal
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            print_it()
    return [stream.buffer.getvalue().decode("utf-8") for stream in streams]


def assert_shown(text, names, room=40):
    """Whatever steers a terminal is gone, the names are there."""
    assert not STEERING.search(text), text
    for name in names:
        if room is None or cell_len(label(name, room)) <= room:  # of wide letters fewer are shown
            assert label(name, room) in text, name


def both(first, second):
    return (first, second) if valid(first) != valid(second) else (first, f"{first}2")


# ---- what evaluations and tournaments print


def some_games(names, agents, detail):
    failure = Failure(0, 3, names[0], (agents[0],), "answer", detail, detail)
    return (
        Episode(0, names, (1.0, 2.0), (5, 5), 5, (failure,)),
        Episode(1, names[::-1], (2.5, 1.5), (5, 5), 5, (), (names[1],)),
    )


def evaluation(names, agents, world, detail):
    told = [{"name": name, "source": name, "kind": "agent", "seat": None, "proportion": 1.0} for name in names]
    tempo = LatencyHistogram()
    tempo.add(0.001)
    output = dict.fromkeys(names, detail)
    measured = Measured(1.0, 1, dict.fromkeys(names, False), "no", True, {names[0]: tempo}, output, (detail,))
    described = {"path": f"module:{world}", "settings": {world: world}}
    chosen = {"episodes": 3, "seed": 0, "stand_in": "noop", "max_failures": 10}
    games = some_games(names, agents, detail)
    return Evaluation(
        world=described,
        agents=agents,
        policies=tuple(told),
        settings=chosen,
        episodes=games,
        out={names[1]: 1},
        partial=True,
        measured=measured,
    )


def tournament(names, agents, world, detail):
    told = [{"name": name, "source": name, "kind": "agent", "seat": None, "proportion": 1.0} for name in names]
    described = {"path": None, "given": world, "why": detail}
    chosen = {"seed": 0, "stand_in": "noop", "max_failures": 10, "rounds": 1}
    games = some_games(names, agents, detail)
    return Tournament(
        world=described,
        agents=agents,
        policies=tuple(told),
        settings=chosen,
        pairings=(names,),
        games=games,
        out={names[1]: 1},
        partial=True,
        seconds=1.0,
    )


class Words(HTMLParser):
    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.within = [], [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.within = tag
        self.words += [value for name, value in attributes if value is not None]

    def handle_data(self, data):
        if self.within not in ("script", "style"):
            self.words.append(data)


def assert_page(page, names):
    page.encode("utf-8")
    seen = Words(page)
    assert seen.tags.count("script") == seen.tags.count("style") == 1
    text = "\n".join(seen.words)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    for name in names:
        assert label(name) in text, name


@FEW
@given(odd, odd, odd, odd, odd, odd)
@example("team[a]", "[/red]", "[link=x]", "\ud800", ":bug:", "[/red] \ud800")
@example("\x1b[2J", "", "\0", " ", "\u202ex", "\x1b]0;evil\x07\nsecond [/line]")
@example("x" * 5000, "x" * 4999 + "y", "z" * 5000, "y" * 300, "w" * 5000, "v" * 5000)
def test_results_are_shown_whatever_is_in_them(first, second, agent, other, world, detail):
    names, agents = both(valid(first), valid(second)), both(agent, other)
    evaluated, played = evaluation(names, agents, world, detail), tournament(names, agents, world, detail)
    for show in (lambda: eval_command.show(evaluated), lambda: tournament_command.show(played, None)):
        out, _ = printed(show)
        assert_shown(out, names)
        assert plain(detail.strip().splitlines()[0] if detail.strip() else "")[:60].rstrip() in out
        narrow, _ = printed(show, width=80)
        assert not STEERING.search(narrow)
        coloured, _ = printed(show, terminal=True)
        assert not STEERING.search(re.sub(r"\x1b\[[0-9;]*m", "", coloured))
        assert all(label(name, 40) in coloured for name in names)
    assert_shown(printed(lambda: eval_command.show(evaluated))[0], agents)
    _, err = printed(lambda: tell_who_always_failed(names[:1], evaluated.episodes[:1], "episode"))
    assert_shown(err, names[:1], None)
    assert err.count("\n") == 1
    for result in (evaluated, played):
        assert_page(result.html(), (*names, *agents))


@FEW
@given(odd, odd, odd, odd, st.sampled_from(["json", "yaml", "table"]))
@example("\ud800", "[/red]", "\0", "\x1b[2J \ud800", "json")
@example("\ud800", "[/red]", "\ud800", "\x1b[2J \ud800", "yaml")
@example("x" * 3000, "a: b", "🦊", "🦊", "yaml")
def test_results_are_written_whatever_is_in_them(tmp_path_factory, first, agent, world, detail, form):
    names, agents = both(valid(first), "other"), both(valid(agent), "b")
    folder = tmp_path_factory.mktemp("out")
    for result in (evaluation(names, agents, world, detail), tournament(names, agents, world, detail)):
        chosen = Play("world", format=form, out=folder / "out.json", html=folder / "page.html")
        out, _ = printed(lambda result=result, chosen=chosen: finish(result, chosen, lambda _: None))
        written = json.loads((folder / "out.json").read_text(encoding="utf-8"))
        assert [one["name"] for one in written["result"]["policies"]] == list(names)
        assert written["result"]["agents"] == list(agents)
        assert_page((folder / "page.html").read_text(encoding="utf-8"), names)
        if form == "json":
            assert json.loads(out) == written
        if form == "yaml":
            loader = pytest.importorskip("yaml")
            both_ways = {valid(first): [*names, valid(detail)], "x": "\\ud83d\\ude00 🦊"}
            assert loader.safe_load(yaml(both_ways)) == both_ways
        assert not STEERING.search(out)


@FEW
@given(odd, st.booleans())
@example("[/red]\ud800\x1b[2J", True)
@example("[/red]\ud800\x1b[2J", False)
def test_lines_meanwhile_are_shown_whatever_is_in_them(line, terminal):
    from motet.cli import play as _play

    def tell():
        with _play._progress("episodes") as (watch, say):
            watch(1, 2)
            say(line)

    _, err = printed(tell, terminal=terminal)
    assert plain(line) in err
    assert not STEERING.search(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", err))


@FEW
@given(odd)
@example("[/red]\ud800\x1b[2J\nsecond")
def test_errors_are_shown_whatever_is_in_them(text):
    def fail():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cli, "_run", lambda *_: (_ for _ in ()).throw(ChildError(text)))
            assert cli.main(["status", "x"]) == 1

    _, err = printed(fail)
    assert plain_lines(text) in err
    assert not STEERING.search(err.replace("\t", ""))


# ---- what a run prints


def snapshot(agents, stage="", why="", state="done", t=3.0):
    rows = [
        AgentRow(name, int(t * 100), 10, 5, t + i, 7.0, 100.0, 10.0, 0.5, 8.0, 3, 1, 20, 0, {"loss": 0.5, stage: 1.0})
        for i, name in enumerate(agents)
    ]
    for row in rows:
        row.stage = stage
    processes = [ProcessRow("actor-0", 1, "", 0.1, 0, False), ProcessRow("learner-0", 2, "", 0.1, 1, False)]
    return Snapshot(t, int(t * 100), 300, 100.0, 0.0, rows, processes, state, why)


def a_run(folder, agents, world, why, stage=""):
    """A run directory as training leaves it."""
    run = RunDirectory.prepare(folder)
    algorithm = {"class": "motet.algorithms.dqn:DQNConfig", "learning_rate": 0.1}
    config = {
        "world": {"path": f"module:{world}", "settings": {"map": world}},
        "agents": dict.fromkeys(agents, algorithm),
        "settings": {"steps": 300, "seed": 0},
        "versions": {},
        "fell_back": why,
    }
    run.begin(config)
    for t in (1.0, 2.0, 3.0):
        run.append_line("metrics.jsonl", snapshot(agents, stage, why, "done" if t == 3 else "running", t).as_dict())
    run.append_line("evaluation.jsonl", evaluated(agents))
    run.write_json("status.json", snapshot(agents, stage, why).as_dict())
    run.save(Checkpoint(300, {name: {"state": np.zeros(3, np.float32)} for name in agents}))
    return run


def evaluated(agents):
    each = {"mean": 1.0, "std": 0.5, "version": 3}
    return {
        "step": 200,
        "seconds": 2.0,
        "episodes": 3,
        "agents": dict.fromkeys(agents, each),
        "team": 2.0,
        "score": 2.0,
    }


@FEW
@given(odd, odd, odd, odd)
@example("team[a]", "[/red]", "[link=x]", "[/red]\ud800")
@example("\ud800", "\x1b[2J", "\0", "\u202e")
@example("", "x" * 5000, "\n", "a\nb")
def test_the_display_shows_agents_of_any_name(first, second, stage, title):
    agents = both(first, second)
    now, history = snapshot(agents, stage), _display.History()
    history.add(now)
    for width, room in ((200, 24), (80, 10)):
        console = Console(file=io.StringIO(), width=width)
        console.print(_display.frame(now, history, title, width, 50))
        text = console.file.getvalue()
        assert_shown(text, agents, room)
        assert max(len(line) for line in text.splitlines()) <= width + 4  # letters that are wide, or have none
    out, _ = printed(lambda: shown_by(_display.display("table", title), now, title))
    assert_shown(out, [])
    assert plain(title) in out and all(label(name, 40) in out for name in agents)
    out, _ = printed(lambda: shown_by(_display.display("table", title), now, title), width=200, terminal=True)
    left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", out)
    assert_shown(left, agents, 24)


def shown_by(display, now, line):
    try:
        display.show(now)
        display.say(line)
        display.show(now)
    finally:
        display.close()


@settings(FEW, max_examples=15)
@given(odd, odd, odd, odd)
@example("team[a]", "[/red]", "[link=x]", "[/red]\ud800")
@example("\ud800", "\x1b[2J", "\0", "\u202e\nsecond")
@example("_a", "$\\frac$", "$$", "x" * 5000)
def test_runs_are_summed_up_and_reported_whatever_is_in_them(tmp_path_factory, first, second, world, why):
    agents = both(valid(first), valid(second))
    folder = tmp_path_factory.mktemp("runs")
    run = a_run(folder / "$_[run]$", agents, world, why)
    result = Result(300, 3.0, "done", dict.fromkeys(agents, 1.0), {}, 0, run.path, {}, fell_back=why)
    out, err = printed(lambda: _summary.summarise(run.path, result, pictures=False))
    assert_shown(out, agents)
    if why:
        assert plain(why) in out
    out, _ = printed(lambda: status_command.status(run.path))
    assert_shown(out, agents, 24)
    out, _ = printed(lambda: status_command.watch(run.path))
    assert_shown(out, [])
    out, err = printed(lambda: cli.main(["report", str(run.path), "--out", str(folder / "page.html")]))
    assert err == "" and not STEERING.search(out)
    assert_page((folder / "page.html").read_text(encoding="utf-8"), agents)
    assert list(run.load().agents) == list(agents)


@settings(FEW, max_examples=4)
@given(odd, odd)
@example("_a", "$\\frac$")
@example("\ud800$", "")
def test_curves_are_drawn_whatever_agents_are_called(tmp_path_factory, first, second):
    run = a_run(tmp_path_factory.mktemp("runs") / "$_[run]$", both(first, second), "w", "")
    assert _summary.learning_curve(run.path).stat().st_size > 10_000


def test_each_agent_is_in_the_legend_of_the_curves():
    names = ["_a", "$b$", "\ud800", "", "c"]
    drawn = {name: ([1, 2], [1.0, 2.0]) for name in names}
    from matplotlib import legend

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        made = legend.Legend.__init__

        def watched(self, parent, handles, labels, **more):
            seen.extend(labels)
            made(self, parent, handles, labels, **more)

        patch.setattr(legend.Legend, "__init__", watched)
        none = np.zeros(0)
        _summary._draw(io.BytesIO(), "$run", drawn, (none, none), Curves({"steps": none}, {}))
    assert [text.strip() for text in seen] == ["_a", "\\$b\\$", "\\ud800", "''", "c"]


@FEW
@given(odd)
@example("[/red]\ud800\x1b[2J\nsecond line")
def test_the_log_of_a_run_has_one_line_for_each_message(tmp_path_factory, line):
    folder = tmp_path_factory.mktemp("run")
    (folder / "logs").mkdir()

    def say():
        show = Show(folder, "title", "lines")
        show.say(line)
        show.say("after it")
        show.close()

    printed(say)
    written = (folder / "logs" / "run.log").read_text(encoding="utf-8")
    assert plain(line) in written and written.count("\n") == 2
    assert not STEERING.search(written)


@FEW
@given(odd, odd)
@example("\ud800", "\0")
@example("[/red]", "a/b/../c")
def test_sinks_take_agents_of_any_name(tmp_path_factory, first, second):
    agents = both(first, second)
    now = snapshot(agents, stage=first)
    tags = [tag for tag, _ in scalars(now)]
    assert len(set(tags)) == len(tags)
    for name in agents:
        assert f"return/{label(name)}" in tags
    folder = tmp_path_factory.mktemp("board")
    board = TensorBoard(folder)
    board.write(now)
    board.close()
    assert [len(path.read_bytes()) > 500 for path in folder.iterdir()] == [True]


def test_weights_and_biases_gets_text_that_it_can_send(tmp_path, monkeypatch):
    class Run:
        def log(self, values, step):
            sent.append(values)

        def finish(self):
            pass

    def init(**given):
        sent.append(given)
        return Run()

    sent = []
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, Settings=lambda **_: None))
    monkeypatch.setenv("WANDB_MODE", "offline")
    sink = Wandb(tmp_path / "run\ud800", {"agents": {"\ud800": [{"path": "\ud800"}]}}, print)
    sink.write(snapshot(["\ud800", "\0"]))
    assert sent[0].pop("dir") == str(tmp_path / "run\ud800")
    for value in sent:
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    assert sent[0]["config"] == {"agents": {"\\ud800": [{"path": "\\ud800"}]}}
    assert sent[1]["return/\\ud800"] and sent[1]["return/\\x00"]


# ---- from a policy to its table


class Rude:
    """A policy of somebody who does not know what its texts are for."""

    def __init__(self, name, text):
        self.name, self.text = name, text

    def reset(self, seed):
        pass

    def act(self, observation, mask=None):
        raise RuntimeError(self.text)


@pytest.mark.parametrize("text", ["[/red] no such tag", "half \ud800 of one", "\x1b[2Jgone\x07", "[link=x]"])
def test_exceptions_of_policies_are_in_the_table_the_page_and_the_file(text, tmp_path):
    named = f"team[a] {text}"
    result = motet.evaluate("matrix", [Rude(named, text), "random"], episodes=2)
    out, _ = printed(lambda: eval_command.show(result))
    assert_shown(out, result.names)
    said = printable(text)  # a detail holds nothing that steers a terminal
    assert said in out
    result.save(tmp_path / "result.json")
    held = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert held["result"]["policies"][0]["name"] == valid(named)
    assert said in held["measured"]["failures"][0]["detail"]
    assert_page(result.html(), result.names)


def test_a_tournament_with_odd_names_continues_where_it_stopped(tmp_path):
    policies = [Rude("\ud83d\ude00 [/red]", "\ud800"), "random"]
    first = motet.tournament("matrix", policies, rounds=2, dir=tmp_path)
    lines = (tmp_path / "games.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "games.jsonl").write_bytes(b"".join(lines[:1]))
    again = motet.tournament("matrix", policies, rounds=2, dir=tmp_path)
    assert again.deterministic() == first.deterministic()
    out, _ = printed(lambda: tournament_command.show(again, tmp_path))
    assert_shown(out, again.names)


def test_a_world_whose_error_is_odd_ends_with_that_error():
    """In a process of its own, from which the text comes home as bytes."""
    from motet.system.child import Child

    child = Child("odd", raise_odd, ())
    assert child.join(60)
    assert "half \\ud800 of one" in child.traceback()
    child.close()


def raise_odd():
    raise RuntimeError("half \ud800 of one")


def test_equal_policies_of_one_name_never_take_the_name_of_another():
    policies = [Rude("x", "1"), Rude("x", "2"), Rude("x (2)", "3")]
    result = motet.evaluate("matrix", policies, episodes=2)
    assert len({one["name"] for one in result.policies}) == 3


def test_measurements_with_long_names_are_shown_as_far_as_there_is_room():
    from motet.system.memory import Segment
    from motet.training.board import Board

    board = Board(1, 1, 1, Segment(Board.layout(1, 1, 1)))
    board.write_metrics(0, {"loss": 1.0, "\ud800" * 100: 2.0, "x" * 2000: 3.0})
    assert board.read_metrics(0) == {"loss": 1.0, "\ud800" * 100: 2.0}


# ---- the functions themselves


@given(st.text(st.characters()))
def test_plain_text_is_visible_stable_and_says_everything(text):
    shown = plain(text)
    shown.encode("utf-8")
    assert plain(shown) == shown and not STEERING.search(shown) and "\n" not in shown
    assert plain_lines(text).count("\n") == text.count("\n")
    valid(text).encode("utf-8")
    assert valid(valid(text)) == valid(text)
    for room in (1, 2, 3, 10, 40):
        assert 1 <= len(label(text, room)) <= room or len(label(text)) <= room


def test_ordinary_text_stays_as_it_is():
    for text in ("agent_0", "team[a]", "日本語", "🦊", "👨‍👩‍👧", "می‌خواهم", "é", "a b", "C:\\x", "\xa0"):
        assert plain(text) == plain_lines(text) == valid(text) == text
    assert label("agent_0", 10) == "agent_0"
    assert plain_lines("a\n\tb") == "a\n\tb"


@given(st.lists(st.text(st.characters(), max_size=20) | st.sampled_from(ODD), unique=True, max_size=6))
def test_files_of_any_names_are_distinct(names):
    stems = file_stems(names)
    assert list(stems) == names
    assert len({stem.casefold() for stem in stems.values()}) == len(names)
    for stem in stems.values():
        assert stem == Path(stem).name and not stem.startswith(".") and len(f"{stem}.replay.safetensors".encode()) < 256
