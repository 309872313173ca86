"""The use of this machine's GPUs, asked of the NVIDIA driver's own program, outside of the processes that learn."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["GpuMeter", "GpuUse"]

_TIMEOUT_S = 10.0  # seconds after which a query is killed
_REST = 50  # minimum pause after a query, as a multiple of its duration: a query may keep a core busy
_QUERY = "--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"


@dataclass
class GpuUse:
    """How much of a GPU all programs of this machine use. A value of None: the driver does not report it."""

    index: int
    """Number of the GPU, as the driver counts."""
    utilisation: float | None
    """The share of the time in which the GPU was busy, over the driver's last sample (at most a second)."""
    memory_bytes: int | None
    """Bytes of the GPU's memory in use."""
    memory_limit_bytes: int | None
    """Bytes of the GPU's memory."""


class GpuMeter:
    """Queries the use of the GPUs repeatedly, in a thread, so that the caller never waits for an answer.

    >>> meter = GpuMeter()
    >>> meter.newest()
    []
    """

    def __init__(self) -> None:
        self._newest: tuple[list[GpuUse], float] = [], 0.0
        self._ending = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()

    @contextlib.contextmanager
    def reading(self, every_s: float) -> Iterator[None]:
        """Query the driver every ``every_s`` seconds within the block, less often if answers take long; never without a
        driver."""
        command = _command(os.environ)
        if not command:
            yield
            return
        thread = threading.Thread(target=self._work, args=(command, every_s), name="motet-gpus", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            with self._starting:
                if self._process is not None:
                    self._process.kill()
            thread.join(1.0)
            self._newest = [], 0.0

    def newest(self) -> list[GpuUse]:
        """Return the newest answer; empty if there is none, or if it is old because the driver no longer answers."""
        found, until = self._newest
        return found if time.monotonic() < until else []

    def _work(self, command: list[str], every_s: float) -> None:
        while not self._ending.is_set():
            began = time.monotonic()
            found = self._ask(command)
            now = time.monotonic()
            pause_s = max(every_s, _REST * (now - began))
            self._newest = found, now + pause_s + _TIMEOUT_S
            if self._ending.wait(pause_s):
                return

    def _ask(self, command: list[str]) -> list[GpuUse]:
        """Query the driver once; empty if this fails or takes too long."""
        try:
            with self._starting:
                if self._ending.is_set():
                    return []
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    text=True, errors="replace", start_new_session=True,  # Ctrl-C must not reach the driver's program
                )  # fmt: skip
        except OSError:
            return []
        try:
            text, _ = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # a process that waits for a driver may outlive SIGKILL
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            return []
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()
        return _parsed(text)


def _command(environment: Mapping[str, str]) -> list[str]:
    """Return the command that asks for the GPUs that this process may use; empty if there are none, or no driver."""
    program, visible = shutil.which("nvidia-smi"), environment.get("CUDA_VISIBLE_DEVICES")
    if program is None or visible in ("", "-1"):
        return []
    return [program, *_QUERY, *([] if visible is None else [f"--id={visible}"])]


def _parsed(text: str) -> list[GpuUse]:
    """Parse an answer; lines and values that are not valid are left out.

    >>> _parsed("0, 37, 1, 2\\n1, [N/A], [Not Supported], 2")[1]
    GpuUse(index=1, utilisation=None, memory_bytes=None, memory_limit_bytes=2097152)
    """
    found = []
    for line in text.splitlines():
        values = [_number(part) for part in line.split(",")]
        if len(values) == 4 and values[0] is not None:
            busy, used, limit = values[1:]
            found.append(
                GpuUse(int(values[0]), None if busy is None else busy / 100, _mebibytes(used), _mebibytes(limit))
            )
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _mebibytes(value: float | None) -> int | None:
    return None if value is None else int(value * 2**20)
