"""Record the frames of an episode, limited in number and size, as PNG, GIF or video."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.errors import SettingError
from motet.streams import global_streams_kept

__all__ = ["Film", "check_video", "drawing", "frames_per_s", "write_video"]

FRAMES = 200
"""Maximum number of frames of an episode. Above it, every other frame is dropped, and half as many are drawn."""
PIXELS = 480
"""Maximum height and width of a frame."""

_VIDEOS = (".avi", ".mkv", ".mov", ".mp4")

Picture = npt.NDArray[np.uint8]


def drawing(factory: Callable[..., Any]) -> Callable[[], Any]:
    """Return the factory with ``render_mode="rgb_array"``, if it has that parameter."""
    try:
        known = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return factory
    return functools.partial(factory, render_mode="rgb_array") if "render_mode" in known else factory


def frames_per_s(env: Any) -> float:
    """Frames per second at which a world should be shown."""
    return float((getattr(env, "metadata", None) or {}).get("render_fps", 10))


class Film:
    """The frames of one episode: one each time all agents have had their turn."""

    def __init__(self) -> None:
        self._frames: list[Picture] = []
        self._every, self._rounds = 1, 0
        self.problem = ""
        """Reason why there are no frames."""

    def capture(self, world: Any, group: Sequence[int] = ()) -> None:
        """Draw the world if all agents have had their turn, and the frame is not one that is skipped.

        ``group`` has just acted; empty: the episode has just begun. A world that plays its own turns calls
        ``each_turn`` when a turn is over, because the order of its agents does not show it.
        """
        if hasattr(world, "each_turn"):
            if not group:
                world.each_turn = lambda: self._end_round(world, not world.playing)
            elif not world.group():
                world.each_turn = None
            return
        following = world.group()
        if not (group and following and following[0] > group[0]):
            self._end_round(world, not following)

    def _end_round(self, world: Any, last: bool) -> None:
        if not self.problem and (self._rounds % self._every == 0 or last):
            self._draw(world)
        self._rounds += 1
        if len(self._frames) > FRAMES:
            self._frames, self._every = self._frames[::2], self._every * 2

    def _draw(self, world: Any) -> None:
        """Draw one frame. An error while drawing is recorded, and does not end the episode."""
        try:
            with global_streams_kept():  # a film does not change the episode
                picture = world.render()
        except Exception as error:  # noqa: BLE001 - reported at the end
            self.problem = f"render() raised {type(error).__name__}{f': {error}' if str(error) else ''}"
            return
        if picture is None:
            self.problem = "the world renders nothing"
        else:
            self._frames.append(_small(picture))

    def pictures(self) -> tuple[bytes, ...]:
        """Return the frames as PNG; empty if the world renders nothing."""
        return tuple(map(_png, self._frames))


def _small(picture: Picture) -> Picture:
    step = max(1, -(-max(picture.shape[:2]) // PIXELS))
    return np.ascontiguousarray(picture[::step, ::step])


def _png(picture: Picture) -> bytes:
    import imageio.v3

    target = io.BytesIO()
    imageio.v3.imwrite(target, picture, extension=".png")
    return target.getvalue()


def check_video(path: Path) -> None:
    """Raise a SettingError if a video with this file name extension cannot be written with what is installed."""
    ending = path.suffix.lower()
    if ending == ".gif":
        return
    if ending not in _VIDEOS:
        raise SettingError(
            f"video must end in .gif or, with imageio[ffmpeg], in one of {', '.join(_VIDEOS)}, got {str(path)!r}"
        )
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise SettingError(
            f"video must end in .gif, got {str(path)!r}; {ending} needs imageio[ffmpeg], which is not installed"
        )


def write_video(path: Path, frames: Sequence[bytes], rate: float) -> None:
    """Write PNG frames as a GIF, or as another video that :func:`check_video` allows."""
    import imageio.v3

    pictures = [imageio.v3.imread(frame, extension=".png") for frame in frames]
    if not pictures:
        raise SettingError(f"video {str(path)!r} was not written: the world renders nothing")
    try:
        if path.suffix.lower() == ".gif":
            imageio.v3.imwrite(path, pictures, duration=1000 / max(rate, 1.0), loop=0)
        else:
            imageio.v3.imwrite(path, np.stack(pictures), fps=rate, plugin="FFMPEG")
    except (ImportError, ValueError, OSError) as error:
        raise SettingError(
            f"video {str(path)!r} cannot be written ({error}); fix: write a .gif, or install imageio[ffmpeg]"
        ) from error
