"""Films: what can be drawn is drawn, by the filmed copy alone, and what cannot says why."""

import functools
import os
import sys
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from motet.evaluation.evaluate import EvaluationSettings, evaluate
from motet.reports.summary import episode_gif
from motet.training.run import train
from motet.training.settings import Settings
from motet.world import as_world
from motet.world.film import Film, frames_per_s, made_to_draw
from motet.worlds import MatrixGame
from motet.worlds.catalogue import world_factory


class Pole(gymnasium.Env):
    """A world whose reward tells how it was made."""

    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)
    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(self, render_mode=None):
        self.render_mode, self.turn = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return 0, {}

    def step(self, action):
        self.turn += 1
        return 0, 2.0 if getattr(self, "render_mode", None) else 1.0, self.turn == 4, False, {}

    def render(self):
        return np.full((6, 8, 3), 10 * self.turn, np.uint8)


class Course(Pole):
    """As the environments of courses are: no render_mode, and a window unless the mode is given."""

    metadata: ClassVar = {"render.modes": ["human", "rgb_array"], "video.frames_per_second": 50}

    def __init__(self):
        super().__init__()
        del self.render_mode

    def render(self, mode="human"):
        assert mode == "rgb_array", "a window was opened"
        return super().render()


def played(factory, **settings):
    notes = []
    result = evaluate(factory, "random", EvaluationSettings(episodes=2, film=(0,), **settings), on_message=notes.append)
    return result, notes


def filmed(factory):
    """Play an episode, as an evaluation does, and return its film."""
    env, unable = made_to_draw(factory)
    world, film = as_world(env), Film(unable)
    world.reset(0)
    film.capture(world)
    while group := world.group():
        world.act([world.action_spaces[agent].sample() for agent in group])
        film.capture(world, group)
    return film


def test_only_the_filmed_copy_draws():
    result, notes = played(functools.partial(Pole))
    assert len(result.episodes[0].frames) == 5 and not result.episodes[1].frames and not notes
    assert [episode.returns for episode in result.episodes] == [(8.0,), (4.0,)]


@pytest.mark.parametrize("wrapped", [False, True])
def test_course_environments_are_drawn_without_a_window(wrapped):
    make = (lambda: gymnasium.wrappers.OrderEnforcing(Course())) if wrapped else Course
    film = filmed(make)
    assert [int(frame[0, 0, 0]) for frame in film.frames] == [0, 10, 20, 30, 40]
    assert frames_per_s(Course()) == 50


def test_gymnasium_environments_are_drawn():
    film = filmed(world_factory("gym:CartPole-v1"))
    assert len(film.frames) > 5
    assert len(np.unique(film.frames[0].reshape(-1, 3), axis=0)) > 3  # a track, a cart and a pole
    assert not np.array_equal(film.frames[0], film.frames[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere SDL has a driver without a window system")
@pytest.mark.parametrize(("screen", "driver"), [("", "dummy"), (":0", None)])
def test_sdl_does_not_look_for_a_screen_where_there_is_none(screen, driver, monkeypatch):
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", screen)
    drivers = []

    class Drawn(Pole):
        def render(self):
            drivers.append(os.environ.get("SDL_VIDEODRIVER"))
            return super().render()

    filmed(Drawn)
    assert set(drivers) == {driver} and "SDL_VIDEODRIVER" not in os.environ


def test_factories_with_any_keyword_are_drawn():
    film = filmed(world_factory("pettingzoo.classic.rps_v2:parallel_env", {"max_cycles": 3}))
    assert len(film.frames) == 4 and len(np.unique(film.frames[-1].reshape(-1, 3), axis=0)) > 3

    def picky(**settings):
        if settings:
            raise TypeError(f"unexpected {settings}")
        return Pole("rgb_array")

    assert len(filmed(picky).frames) == 5


def test_a_missing_package_of_the_renderer_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    film = filmed(world_factory("gym:CartPole-v1"))
    assert not film.frames and "pygame is not installed" in film.problem and "pip install" in film.problem

    def heavy(render_mode=None):
        if render_mode:
            raise gymnasium.error.DependencyNotInstalled("mujoco is not installed, run pip install mujoco")
        return Pole()

    result, notes = played(heavy)
    assert len(result.episodes) == 2 and not result.failed()
    assert "mujoco is not installed" in notes[0]


@pytest.mark.parametrize(
    ("picture", "shape"),
    [(np.zeros((4, 5), np.uint8), (4, 5, 3)), (np.zeros((4, 5, 4), np.uint8), (4, 5, 3)), (np.zeros((4, 5, 3)), None)],
)
def test_pictures_of_other_forms_are_converted_or_named(picture, shape):
    class Odd(Pole):
        def render(self):
            return picture

    film = filmed(Odd)
    assert [frame.shape for frame in film.frames[:1]] == ([shape] if shape else [])
    assert film.problem == ("" if shape else "render() must return uint8 [height, width, 3], got float64 [4, 5, 3]")


def test_the_summary_films_gymnasium_worlds_and_says_why_it_cannot(tmp_path, monkeypatch):
    settings = Settings(steps=20, engine="serial")
    train("gym:CartPole-v1", "dqn", settings, run=tmp_path / "pole")
    assert episode_gif(tmp_path / "pole").stat().st_size > 1000
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(Exception, match="pygame is not installed"):
        episode_gif(tmp_path / "pole")
    monkeypatch.setattr(MatrixGame, "render", lambda self: None)
    train(MatrixGame, "dqn", settings, run=tmp_path / "matrix")
    with pytest.raises(Exception, match="the world renders nothing"):
        episode_gif(tmp_path / "matrix")


@pytest.mark.parametrize("shape", [(400, 600), (481, 3), (3, 1441), (480, 480)])
def test_large_pictures_are_averaged_so_that_thin_lines_stay(shape):
    picture = np.full((*shape, 3), 255, np.uint8)
    picture[shape[0] // 2 | 1 if shape[0] > 3 else 1] = 0  # a line of one pixel

    class Large(Pole):
        def render(self):
            return picture

    (frame, *_), step = filmed(Large).frames, -(-max(shape) // 480)
    assert frame.shape == (-(-shape[0] // step), -(-shape[1] // step), 3) and max(frame.shape) <= 480
    assert (frame.min(axis=(1, 2)) < 255).sum() == 1
