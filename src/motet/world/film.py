"""Record the frames of an episode, limited in number and size, as PNG, GIF or video, with a caption for each."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.errors import SettingError
from motet.streams import global_streams_kept
from motet.text import label, short

__all__ = [
    "Film",
    "captioned",
    "check_video",
    "frames_per_s",
    "made_to_draw",
    "score_line",
    "write_gif",
    "write_video",
]

FRAMES = 200
"""Maximum number of frames of an episode. If there are more, every second frame is dropped, among later frames too."""
PIXELS = 480
"""Maximum height and width of a frame."""

_WIDTH = 240  # pixels: smaller frames are enlarged, so that captions fit below them
_SCORES = 4  # number of agents whose scores are shown; for more agents only the sum
_PAPER, _INK = (252, 252, 251), (28, 30, 33)

_VIDEOS = (".avi", ".mkv", ".mov", ".mp4")

Picture = npt.NDArray[np.uint8]


def made_to_draw(factory: Callable[..., Any]) -> tuple[Any, str]:
    """Make the copy of a world that is filmed. Return the copy and, if the copy cannot draw, the reason.

    ``render_mode="rgb_array"`` is passed if the factory has that parameter, or takes any keyword. If the factory then
    raises, because the world does not know the mode or a package of the renderer is missing, the copy is made without
    the mode.
    """
    try:
        known = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return factory(), ""
    if not any(one.name == "render_mode" or one.kind is one.VAR_KEYWORD for one in known):
        return factory(), ""
    try:
        with _no_window():
            return factory(render_mode="rgb_array"), ""
    except Exception as error:  # noqa: BLE001 - reported if there are no frames; the episode is played all the same
        return factory(), f"with render_mode='rgb_array' the world raised {type(error).__name__}: {error}"


@contextlib.contextmanager
def _no_window() -> Iterator[None]:
    """Keep SDL, with which many worlds draw, from printing an error on a machine without a screen."""
    name = "SDL_VIDEODRIVER"
    if sys.platform != "linux" or any(os.environ.get(one) for one in (name, "DISPLAY", "WAYLAND_DISPLAY")):
        yield
        return
    os.environ[name] = "dummy"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def frames_per_s(env: Any) -> float:
    """Frames per second at which a world should be shown."""
    known = getattr(env, "metadata", None) or {}
    return float(known.get("render_fps") or known.get("video.frames_per_second") or 10)


class Film:
    """The frames of one episode: one each time all agents have had their turn.

    Args:
        unable: why the world cannot draw, if that is already known.
    """

    def __init__(self, unable: str = "") -> None:
        self._unable = unable
        self._frames: list[Picture] = []
        self._captions: list[str] = []
        self.caption: Callable[[], str] = str
        """Returns the caption of the frame that is drawn now; by default an empty one."""
        self._every, self._rounds = 1, 0
        self.problem = ""
        """Reason why there are no frames."""

    def capture(self, world: Any, group: Sequence[int] = ()) -> None:
        """Draw the world if all agents have had their turn, unless this frame is one that is skipped.

        ``group`` has just acted; empty: the episode has just begun. A world that plays its own turns calls
        ``each_turn`` when a turn is over, because the order of its agents does not show where a turn ends.
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
            self._frames, self._captions, self._every = self._frames[::2], self._captions[::2], self._every * 2

    def _draw(self, world: Any) -> None:
        """Draw one frame. An error while drawing is recorded, and does not end the episode."""
        try:
            with global_streams_kept(), _no_window():  # a film does not change the episode
                picture = world.render()
        except Exception as error:  # noqa: BLE001 - reported at the end
            raised = f"render() raised {type(error).__name__}{f': {error}' if str(error) else ''}"
            self.problem = self._unable or raised
            return
        if picture is None:
            self.problem = self._unable or "the world renders nothing"
            return
        try:
            self._frames.append(_small(_rgb(picture)))
            self._captions.append(self.caption())
        except ValueError as error:
            self.problem = str(error)

    @property
    def frames(self) -> list[Picture]:
        """The frames so far, uint8 [height, width, 3]."""
        return self._frames

    @property
    def rounds(self) -> int:
        """Number of times that all agents have had their turn."""
        return self._rounds

    def pictures(self) -> tuple[bytes, ...]:
        """Return the frames as PNG; empty if the world renders nothing."""
        return tuple(map(_png, self._frames))

    def captions(self) -> tuple[str, ...]:
        """Return the caption of each frame."""
        return tuple(self._captions)


def _rgb(picture: Any) -> Picture:
    """Return a picture as uint8 [height, width, 3]. A picture without colours, or with opacity, is converted."""
    found = np.asarray(picture)
    if found.ndim == 2:
        found = np.repeat(found[:, :, None], 3, axis=2)
    if found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] not in (3, 4) or not found.size:
        raise ValueError(f"render() must return uint8 [height, width, 3], got {found.dtype} {list(np.shape(picture))}")
    rgb: Picture = found[:, :, :3]
    return rgb


def _small(picture: Picture) -> Picture:
    """Return a picture that is at most PIXELS high and wide, by averaging blocks, so that thin lines stay visible."""
    step = max(1, -(-max(picture.shape[:2]) // PIXELS))
    if step == 1:
        return np.ascontiguousarray(picture)
    rows, columns = (np.arange(0, size, step) for size in picture.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(picture.astype(np.uint32), rows, axis=0), columns, axis=1)
    counts = [np.diff(starts, append=size) for starts, size in zip((rows, columns), picture.shape[:2], strict=True)]
    small: Picture = (sums // np.multiply.outer(*counts)[:, :, None]).astype(np.uint8)
    return small


def _png(picture: Picture) -> bytes:
    import imageio.v3

    target = io.BytesIO()
    imageio.v3.imwrite(target, picture, extension=".png")
    return target.getvalue()


def score_line(moment: str, agents: Sequence[str], scores: Sequence[float | None]) -> str:
    """Return the caption of a frame: the moment, and the scores so far; for many agents only their sum.

    >>> score_line("turn 3", ["left", "right"], [1.0, -0.5]), score_line("turn 0", ["left"], [None])
    ('turn 3, left: 1, right: -0.500', 'turn 0')
    """
    known = [score for score in scores if score is not None]
    if not known or len(known) < len(scores):
        return moment
    if len(known) > _SCORES:
        return f"{moment}, all agents: {short(sum(known))}"
    pairs = zip(agents, known, strict=True)
    return ", ".join([moment, *(f"{label(agent, 20)}: {short(score)}" for agent, score in pairs)])


def captioned(frames: Sequence[Picture], captions: Sequence[str]) -> list[Picture]:
    """Return the frames with their captions below them, all of one size. Small frames are enlarged."""
    from PIL import Image, ImageDraw, ImageFont

    if not any(captions):
        return list(frames)
    times = max(1, _WIDTH // max(frames[0].shape[1], 1))
    large = [frame.repeat(times, 0).repeat(times, 1) for frame in frames]
    width = max(large[0].shape[1], _WIDTH)
    font = ImageFont.load_default(size=14)
    wrapped = [_wrapped(caption, lambda text: font.getlength(text) <= width - 12) for caption in captions]
    below = 18 * max(map(len, wrapped)) + 8
    # few shades, so that a GIF of a plain world needs few colours
    shades = np.linspace(_PAPER, _INK, 4).astype(np.uint8)
    found = []
    for frame, text in zip(large, wrapped, strict=True):
        strip = Image.new("L", (width, below))
        ImageDraw.Draw(strip).multiline_text((6, 4), "\n".join(text), 255, font, spacing=4)
        picture = np.full((frame.shape[0] + below, width, 3), _PAPER, np.uint8)
        left = (width - frame.shape[1]) // 2
        picture[: frame.shape[0], left : left + frame.shape[1]] = frame[..., :3]
        picture[frame.shape[0] :] = shades[np.asarray(strip) // 64]
        found.append(picture)
    return found


def _wrapped(caption: str, fits: Callable[[str], bool]) -> list[str]:
    """Break a caption into lines, at its commas."""
    found = [""]
    for part in caption.split(", "):
        longer = f"{found[-1]}, {part}" if found[-1] else part
        if fits(longer) or not found[-1]:
            found[-1] = longer
        else:
            found.append(part)
    return found


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


def write_gif(path: Path, pictures: Sequence[Picture], rate: float) -> None:
    """Write pictures as a GIF. If all pictures together have at most 256 colours, no colour changes, and writing is
    faster."""
    from PIL import Image

    codes = [picture[..., :3].astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32) for picture in pictures]
    used = np.zeros(1 << 24, np.bool_)
    for code in codes:
        used[code] = True
    colours = np.flatnonzero(used)
    if len(colours) > 256:
        images = [Image.fromarray(picture[..., :3]).quantize(256) for picture in pictures]
    else:
        place = np.zeros(1 << 24, np.uint8)
        place[colours] = np.arange(len(colours))
        palette = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], 1).astype(np.uint8).tobytes()
        images = [Image.fromarray(place[code]) for code in codes]
        for image in images:
            image.putpalette(palette)
    first, *others = images
    first.save(path, "GIF", save_all=True, append_images=others, duration=1000 / max(rate, 1.0), loop=0)


def write_video(path: Path, frames: Sequence[bytes], rate: float, captions: Sequence[str] = ()) -> None:
    """Write PNG frames as a GIF, or as another video that :func:`check_video` allows, with captions if given."""
    import imageio.v3

    pictures = [imageio.v3.imread(frame, extension=".png") for frame in frames]
    if not pictures:
        raise SettingError(f"video {str(path)!r} was not written: the world renders nothing")
    pictures = captioned(pictures, captions or [""] * len(pictures))
    try:
        if path.suffix.lower() == ".gif":
            write_gif(path, pictures, rate)
        else:
            imageio.v3.imwrite(path, np.stack(pictures), fps=rate, plugin="FFMPEG")
    except (ImportError, ValueError, OSError) as error:
        raise SettingError(
            f"video {str(path)!r} cannot be written ({error}); fix: write a .gif, or install imageio[ffmpeg]"
        ) from error
