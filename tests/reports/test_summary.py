"""The end of a run: the table, the curves, the episode, the way on."""

import functools
import io
import re
import shutil
import types

import imageio.v3
import numpy as np
import pytest
from PIL import Image, ImageSequence
from rich.console import Console

from motet.algorithms import DQNConfig
from motet.errors import SettingError
from motet.policies.entries import load_policies
from motet.reports.summary import _program, _rate, episode_gif, learning_curve, summarise
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import Snapshot
from motet.runs.status import read_history
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.world.film import write_gif
from motet.worlds import TreasureHunt

DQN = DQNConfig(hidden=(8,), batch_size=8, min_rows=16)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "hunt"
    world = functools.partial(TreasureHunt, agents=2, size=7, turns=10)
    return run, train(world, {"agent_0": DQN, "agent_1": DQN}, Settings(steps=200, engine="serial"), run=run)


def test_the_summary_shows_results_and_the_next_commands(finished):
    run, result = finished
    console = Console(file=io.StringIO(), width=80)
    summarise(run, result, console=console)
    text = console.file.getvalue()
    for word in ("agent_0", "agent_1", "first return", "last return", "done after 200 steps", "0 restarts"):
        assert word in text
    assert f"motet eval {run} -p {run}\n" in text
    assert f"motet resume {run} --steps 200" in text and "learning_curve.png" in text and "episode.gif" in text
    assert max(len(line) for line in text.splitlines() if "/" not in line) <= 80


def test_the_table_of_a_resumed_run_is_of_all_its_sessions(finished, tmp_path):
    run, sessions = tmp_path / "run", [finished[1]]
    shutil.copytree(finished[0], run)
    sessions += [resume(run, steps=steps) for steps in (50, 600)]
    console = Console(file=io.StringIO(), width=120)
    summarise(run, sessions[-1], pictures=False, console=console)
    text = console.file.getvalue()
    assert "done after 850 steps, the last 600 in 0:0" in text
    header, row = (re.split(r"\s{2,}", line.strip()) for line in text.strip().splitlines()[:2])
    cells = dict(zip(header, row, strict=True))
    lasts = [look.agents[0] for look in read_history(RunDirectory.open(run)) if look.state == "done"]
    assert cells["episodes"] == str(sum(last.episodes for last in lasts)) == "85"
    assert len(lasts) == 3 and cells["versions"] == str(sum(last.version for last in lasts))
    assert cells["updates"] == str(sessions[-1].updates["agent_0"])


def test_versions_that_count_on_in_an_exactly_resumed_run_are_counted_once(tmp_path):
    config = DQNConfig(hidden=(8,), min_rows=16, batch_size=4)
    chosen = {"engine": "serial", "updates_per_step": 0.5, "publish_every": 3, "keep_replay": True}
    world = functools.partial(TreasureHunt, agents=2, size=7, turns=11)
    train(world, config, Settings(steps=100, **chosen), run=tmp_path / "run")
    last = resume(tmp_path / "run", steps=200, world=world)
    console = Console(file=io.StringIO(), width=120)
    summarise(tmp_path / "run", last, pictures=False, console=console)
    header, row = (re.split(r"\s{2,}", line.strip()) for line in console.file.getvalue().strip().splitlines()[:2])
    updates = last.updates["agent_0"]
    assert dict(zip(header, row, strict=True))["versions"] == str(
        1 + updates // 3 + 2
    )  # one at the end of each session


def test_the_summary_says_how_to_see_the_best(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    (run / "best").mkdir()
    console = Console(file=io.StringIO(), width=80)
    summarise(run, finished[1], pictures=False, console=console)
    assert f"motet eval {run} -p {run / 'best'}" in console.file.getvalue()


def test_the_curve_is_a_picture(finished):
    path = learning_curve(finished[0])
    picture = imageio.v3.imread(path)
    assert picture.shape[0] > 400 and picture.shape[1] > 800
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 20
    assert not [path for path in finished[0].iterdir() if "part" in path.name]


def turns(path):
    """Of a GIF, in which pictures that are equal become one that lasts longer."""
    with Image.open(path) as picture:
        lasts = [frame.info["duration"] for frame in ImageSequence.Iterator(picture)]
    return sum(lasts) / (1000 / TreasureHunt.metadata["render_fps"])


def test_the_episode_shows_every_turn(finished):
    path = episode_gif(finished[0])
    frames = imageio.v3.imread(path)
    assert frames.ndim == 4 and frames.shape[3] == 3
    assert turns(path) == 11
    assert not np.array_equal(frames[0], frames[-1])


def test_the_policies_of_a_run_are_its_learners_weights(finished):
    run, result = finished
    policies = load_policies(run)
    assert list(policies) == ["agent_0", "agent_1"]
    world = TreasureHunt(agents=2, size=7)
    world.reset(seed=1)
    for name, policy in policies.items():
        space = world.observation_space(name), world.action_space(name)
        behaviour = DQN.behaviour(*space)
        weights = result.agents[name]["state"][: DQN.sizes(*space).weights]
        behaviour.begin(0)
        behaviour.load(weights, {"epsilon": 1.0, "learner_step": 0})
        policy.reset(0)
        for _ in range(20):
            seen = np.random.default_rng(_).integers(0, 2, space[0].shape, dtype=np.uint8)
            assert policy.act(seen) == behaviour.act(seen[None], explore=False)[0][0]


def test_stacked_frames_reach_the_policy_as_in_training(tmp_path):
    config = DQNConfig(hidden=(8,), batch_size=8, min_rows=16, n_frames=3)
    world = functools.partial(TreasureHunt, agents=1, size=7, turns=10)
    train(world, config, Settings(steps=60, engine="serial"), run=tmp_path / "run")
    assert turns(episode_gif(tmp_path / "run")) == 11


def test_a_world_that_is_not_written_down_gets_no_episode_but_a_reason(tmp_path):
    result = train(lambda: TreasureHunt(size=7), DQN, Settings(steps=30, engine="serial"), run=tmp_path / "run")
    console = Console(file=io.StringIO(), width=80)
    summarise(tmp_path / "run", result, console=console)
    assert "episode:        none: the run's world was" in console.file.getvalue()
    with pytest.raises(SettingError, match="cannot be imported"):
        load_policies(tmp_path / "run")


def looks(*pairs):
    """Snapshots of a run, from pairs of seconds and steps."""
    return [Snapshot(float(seconds), steps, 1000, 0.0, None, [], []) for seconds, steps in pairs]


@pytest.mark.parametrize(
    ("history", "began", "rate"),
    [
        (looks((1, 0), (2, 0), (3, 100), (4, 300), (5, 500)), 0, 200.0),  # two seconds in which processes start
        (looks((9, 900), (2, 1000), (3, 1100), (5, 1500)), 1000, 200.0),  # resumed
        (looks((5, 500)), 0, 100.0),  # too short for more
        ([], 0, 100.0),
    ],
)
def test_the_rate_is_without_the_start(history, began, rate):
    result = types.SimpleNamespace(steps=began + 500, began=began, seconds=5.0)
    assert _rate(result, history) == pytest.approx(rate)


def test_commands_can_be_pasted_from_where_the_user_is(tmp_path, monkeypatch):
    programs = tmp_path / "my venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "motet"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert _program("motet") == "'my venv/bin/motet'", "as make train leaves it"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert _program("motet") == f"'{programs}/motet'"
    monkeypatch.setenv("PATH", str(programs))
    assert _program("motet") == "motet"
    assert _program("tensorboard") == "tensorboard", "what is not installed has no path"


@pytest.mark.parametrize("colours", [200, 2000])
def test_a_gif_of_few_colours_keeps_them(tmp_path, colours):
    chosen = np.random.default_rng(0).integers(0, 256, (colours, 3)).astype(np.uint8)
    pictures = [chosen[np.random.default_rng(i).integers(0, colours, (40, 50))] for i in range(3)]
    write_gif(tmp_path / "x.gif", pictures, 10.0)
    with Image.open(tmp_path / "x.gif") as made:
        found = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(made)]
    assert len(found) == 3 and all(np.array_equal(*pair) for pair in zip(found, pictures, strict=True)) == (
        colours < 257
    )


def test_the_episode_has_captions_below_its_frames(finished):
    with Image.open(episode_gif(finished[0])) as made:
        width, height = made.size
    assert width >= 200 and height > width, "the caption is below a square world"
