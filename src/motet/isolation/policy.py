"""IsolatedPolicy: a policy that runs in a separate process, with limits. Its failure does not affect other processes.

A deadline counts elapsed time, without the time that the policy waits for a core. CPU time has a separate limit
(``cpu_s``). After a failure the caller decides how the game continues: in evaluations a stand-in plays on
(``evaluation/episode.py``), in training the episode breaks off and the partner is replaced (``training/partners.py``).

The policy is made in its process from a :class:`~motet.policy.PolicySpec`. The parent sends observations and masks and
receives actions through shared memory that only these two processes use. Both wait on bells. Asking does not wait. So
several policies can be asked first and awaited afterwards, and they compute at the same time:

>>> from gymnasium.spaces import Box, Discrete
>>> spec = PolicySpec("motet.policy:ConstantPolicy", {"action": 2})
>>> with IsolatedPolicy(spec, Box(0, 1, (4,)), Discrete(3), agent="agent_0") as policy:
...     policy.ask_reset(seed=1)
...     policy.answer()
...     policy.ask(np.zeros(4, "float32"))
...     policy.answer()
2

Answers are not trusted: an answer is copied once, then checked against the action space, and never unpickled. Every
failure raises :class:`~motet.errors.PolicyFailure` with its cause. By then the process is dead, and so is every process
that it started. :meth:`IsolatedPolicy.replace` starts a new one.

Time that a policy spends waiting for a CPU does not count against its deadline, so that other busy processes cannot
make it late. (Only Linux measures that time.) No wait is longer than ten times its limit.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import secrets
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, NoReturn

import cloudpickle
import numpy as np

from motet.errors import MotetError, PolicyFailure, SettingError, SpecError, StartError
from motet.isolation import mailbox as _mailbox
from motet.isolation import process as _policy_process
from motet.isolation import sandbox as _sandbox
from motet.isolation.handle import PolicyProcess
from motet.isolation.mailbox import Mailbox
from motet.isolation.marks import new_mark
from motet.isolation.process import PolicyStart
from motet.isolation.usage import PolicyUsage
from motet.masks import MaskForm, mask_form
from motet.nest import Nest
from motet.policies.limits import PolicyLimits
from motet.policy import PolicySpec, WorldDescription
from motet.system.memory import Segment
from motet.system.pickling import MAKE_IT_THERE, check_picklable
from motet.system.raised import DETAIL, printable
from motet.world.spaces import InvalidValue, action_checker, observation_caster

__all__ = ["IsolatedPolicy", "PolicyLimits", "sandbox_gaps"]

_PATIENCE = 10
"""No wait is longer than this many times its limit, even if the machine is busy."""
_SLICE_S = 0.02
"""Seconds between two checks of the process while waiting for its answer."""
_MEASURE_S = 1.0
"""Seconds between two measurements of the memory for a report."""
_MOST_STRAYS = 100
"""How often the bell may ring without an answer. (A well-behaved process does so at most once.)"""
_DEFAULTS = PolicyLimits()
_GUARDED = sys.platform == "linux"
_BY_KERNEL = True
"""Whether the kernel enforces limits where it can. Tests of the limits that the guard enforces set this to False."""


def sandbox_gaps() -> tuple[str, ...]:
    """Return what this machine lacks for ``sandbox="strict"``, as texts; empty if it lacks nothing."""
    return _sandbox.gaps()


class IsolatedPolicy:
    """A :class:`~motet.policy.Policy` in a separate process. Ask one question at a time, and call ``answer`` after it.

    The constructor returns while the process is still starting. If the start fails, the first ``answer`` raises.

    Args:
        spec: how the policy is made. It is made only in the policy's process.
        observation_space: observation space of the agent. Observations other than arrays, dicts and tuples of arrays
            are pickled on their way to the policy.
        action_space: action space of the agent; its actions must be arrays, or dicts or tuples of arrays.
        agent: name of the agent; offered to the policy's factory.
        world: settings of the world; offered to the factory too.
        limits: limits on time, memory, open files and output.
        sandbox: ``"strict"``: the policy cannot open sockets, start processes or affect others. It can read only the
            interpreter, the packages and its data, and write only in its temporary folder. If the kernel cannot enforce
            this, an error is raised. ``"best-effort"``: as far as the kernel can, with a warning. The policy's data are
            the arguments of the spec that are paths (``pathlib.Path``) or are called ``data``.
        masked: whether questions may have a mask.
        description: description of the world, from which teams are made; offered to other factories too.
        alive: called now and then while an answer is awaited.
    """

    def __init__(
        self,
        spec: PolicySpec,
        observation_space: Any,
        action_space: Any,
        *,
        agent: str = "",
        world: Mapping[str, Any] = {},
        limits: PolicyLimits = _DEFAULTS,
        sandbox: Literal["no", "best-effort", "strict"] = "no",
        masked: bool = False,
        description: WorldDescription | None = None,
        alive: Callable[[], None] | None = None,
    ) -> None:
        self._alive = alive
        self._name = f"policy {spec.title}" + (f" of {agent}" if agent else "")
        self._limits, self._sandbox, self._own = limits, _checked_sandbox(sandbox), _modules_and_data(spec)
        self._spaces = observation_space, action_space
        self._give = action_checker(action_space)
        self._mask_form = _mask_form(action_space) if masked else None
        self._layout = _mailbox.layout(observation_space, action_space, masked, limits.output_bytes)
        self._pickled = "piece" in self._layout
        if not self._pickled:
            self._take = observation_caster(observation_space, "the observation")
            self._dtype, self._shape = observation_space.dtype, observation_space.shape
        self._rest = memoryview(b"")  # the unsent rest of an observation that is sent in pieces
        check_picklable(spec, f"policy {spec.title}", "policy", MAKE_IT_THERE)
        known = {"agent": agent, "world": dict(world), "description": description}
        self._parts = cloudpickle.dumps(self._spaces), cloudpickle.dumps((spec, known))
        self._process: PolicyProcess | None = None
        self._usage, self._cpu_taken_s, self._measured_at = PolicyUsage(), 0.0, 0.0
        self._seen = self._number = 0
        self._start()

    # ---- questions and answers

    def ask_reset(self, seed: int) -> None:
        """Tell the policy that a new episode begins. Does not wait."""
        if not 0 <= seed < 2**64:
            raise SettingError(f"seed must be an int from 0 to 2**64 - 1, got {seed}")
        self._check_free()
        self._box.question[_mailbox.VALUE] = seed
        self._send(_mailbox.RESET, self._limits.reset_s)

    def ask(self, observation: Any, mask: Nest = None) -> None:
        """Ask for an action. Does not wait."""
        if self._open or self._process is None:
            self._check_free()
        kind = _mailbox.ACT
        if self._pickled:
            self._rest = memoryview(pickle.dumps(observation, protocol=5))
            self._box.question[_mailbox.VALUE] = len(self._rest)
            self._put_piece()
            kind = _mailbox.PICKLED
        elif (
            observation.__class__ is np.ndarray
            and observation.dtype == self._dtype
            and observation.shape == self._shape
        ):
            self._box.put_observation(observation)
        else:
            self._put_other(observation)
        if mask is not None:
            self._put_mask(mask)
            kind += _mailbox.MASK
        if self._limits.cpu_s is not None and self._process is not None:
            # CPU time of the start does not count for the decision. It is known only when the policy has started.
            self._cpu_before_s = self._process.cpu_s() if self._started else math.inf
        self._send(kind, self._limits.decision_s)

    def answer(self) -> Any:
        """Wait for the answer to the last question and return it: an action, or None after a reset."""
        if not self._open:
            raise MotetError(f"{self._name}: there is no question to answer; call ask() or ask_reset() first")
        box, seen = self._box, self._seen
        count = box.answered.wait(seen, min(_SLICE_S, self._limit_s / 4))
        while True:
            if count == seen:
                self._watch()
            else:
                self._seen = seen = count
                if self._is_answered():
                    return self._accept()
            count = box.answered.wait(seen, _SLICE_S)

    def reset(self, seed: int) -> None:
        """Begin a new episode, and wait until the policy is ready for it."""
        self.ask_reset(seed)
        self.answer()

    def act(self, observation: Any, mask: Nest = None) -> Any:
        """Return the action for one observation."""
        self.ask(observation, mask)
        return self.answer()

    # ---- asking

    def _check_free(self) -> None:
        if self._process is None:
            raise MotetError(f"{self._name}: its process has ended; call replace() to start a new one")
        if self._open and self._number != _policy_process.START:
            raise MotetError(f"{self._name}: the last question is not answered yet; call answer() first")

    def _put_mask(self, mask: Nest) -> None:
        if self._mask_form is None:
            raise SpecError(f"{self._name}: mask must be None with masked=False, got one")
        try:
            self._box.mask[:] = self._mask_form.flat(mask)
        except SpecError as error:
            raise SpecError(f"{self._name}: {error}") from None

    def _put_other(self, given: Any) -> None:
        """Put an observation that is not a single array with the dtype and shape of the space."""
        try:
            self._box.put_observation(self._take(given))
        except InvalidValue as error:
            raise SpecError(f"{self._name}: {error}") from None

    def _put_piece(self) -> None:
        piece, self._rest = self._rest[: _mailbox.PIECE_BYTES], self._rest[_mailbox.PIECE_BYTES :]
        self._box.piece[: len(piece)] = np.frombuffer(piece, np.uint8)

    def _send(self, kind: int, limit_s: float) -> None:
        self._kind, self._limit_s, self._open, self._strays = kind, limit_s, True, 0
        self._since, self._starved_before_s = time.monotonic(), -1.0
        self._box.question[_mailbox.KIND] = kind
        self._ring()

    def _ring(self) -> None:
        self._number = number = self._number + 1
        self._box.question[_mailbox.NUMBER] = number
        self._box.asked.ring()

    def _begin_waiting(self) -> None:
        self._since, self._starved_before_s = time.monotonic(), -1.0

    # ---- waiting

    def _is_answered(self) -> bool:
        """After the bell rang: whether the awaited answer is there and reports no error."""
        number, state = self._box.answer[_mailbox.NUMBER], self._box.answer[_mailbox.STATE]
        if number == self._number and state == _mailbox.FINE:
            if not self._started:
                self._note_start()
            return True
        if number == _policy_process.START and not self._started:
            self._check_state(state, "start")
            self._note_start()
            self._begin_waiting()  # for the question that was asked during the start
            if self._limits.cpu_s is not None and self._process is not None:
                self._cpu_before_s = self._process.cpu_s()
        elif number != self._number:
            self._stray()
        elif state == _mailbox.MORE and len(self._rest):
            self._put_piece()
            self._ring()
        else:
            self._check_state(state, "reset" if self._kind == _mailbox.RESET else "exception")
        return False

    def _note_start(self) -> None:
        self._started = True
        self._usage.start_s = max(self._usage.start_s, time.monotonic() - self._start_at)

    def _check_state(self, state: int, phase: str) -> None:
        causes = {_mailbox.FAILED: phase, _mailbox.REFUSED: "refused", _mailbox.INVALID: "answer"}
        if state == _mailbox.FAILED and self._process is not None and (refused := self._process.refused_a_task()):
            self._fail(*refused)
        if state in causes:
            self._fail(causes[state], self._box.text())
        if state != _mailbox.FINE:
            self._fail("answer", "its state is unknown")

    def _stray(self) -> None:
        """Handle a bell without an answer: from the guard at the end, once at the start, or from a malicious policy."""
        self._watch()
        self._strays += 1
        if self._strays > _MOST_STRAYS:
            self._fail("answer", "it rings the bell without answering")

    def _accept(self) -> Any:
        """Return the answer, copied once and then checked."""
        action = None
        if self._kind > _mailbox.RESET:
            if self._limits.cpu_s is not None:
                self._check_cpu()
            try:
                action = self._give(self._box.take_action())
            except InvalidValue as error:
                self._fail("answer", str(error))
        elif self._kind == _mailbox.RESET:
            took_s = time.monotonic() - self._since
            self._usage.merge(PolicyUsage(resets=1, reset_s=took_s, longest_reset_s=took_s))
        self._open = False
        return action

    def _watch(self) -> None:
        """While there is no answer: check that the process lives and keeps its limits."""
        if self._alive is not None:
            self._alive()
        process = self._check_alive()
        if self._started and self._kind > _mailbox.RESET:
            self._check_cpu()
        what, limit_s = ("reset" if self._kind == _mailbox.RESET else "decision"), self._limit_s
        if not self._started:
            what, limit_s = "start", self._limits.start_s
        starved_s, waited_s = process.starved_s(), time.monotonic() - self._since
        if self._starved_before_s < 0:
            self._starved_before_s = starved_s if self._started else 0.0
        counted_s = waited_s - (starved_s - self._starved_before_s)
        if counted_s >= limit_s or waited_s >= _PATIENCE * limit_s:
            self._fail("timeout", f"no {what} within {limit_s:g} s")

    def _check_alive(self) -> PolicyProcess:
        assert self._process is not None
        if end := self._process.hear():
            self._fail(*end)
        return self._process

    def _check_cpu(self) -> None:
        limit_s = self._limits.cpu_s
        if limit_s is not None and self._process is not None and self._process.cpu_s() - self._cpu_before_s > limit_s:
            self._fail("cpu", f"more than {limit_s:g} s of CPU time for a decision")

    def _fail(self, cause: str, detail: str) -> NoReturn:
        """Kill the process, then raise the failure."""
        self.close()
        raise PolicyFailure(cause, printable(detail)[:DETAIL])

    # ---- the process

    @property
    def output(self) -> str:
        """The end of the policy's output, without control characters. It is kept after the process ended."""
        return printable(self._box.printed())

    def take_usage(self) -> PolicyUsage:
        """Return what the policy's processes have used since the last call.

        Memory is measured at most once a second, because that may take milliseconds.
        """
        if self._process is not None and self._started:
            self._measure(self._process)
        taken, self._usage = self._usage, PolicyUsage()
        return taken

    def _measure(self, process: PolicyProcess) -> None:
        now_s = process.cpu_s()
        self._usage.cpu_s += max(0.0, now_s - self._cpu_taken_s)
        self._cpu_taken_s = max(now_s, self._cpu_taken_s)
        if time.monotonic() - self._measured_at >= _MEASURE_S:
            self._usage.memory_bytes = max(self._usage.memory_bytes, process.memory_bytes())
            self._measured_at = time.monotonic()

    def replace(self) -> None:
        """End the process, wait until it is dead, and start a new one."""
        self.close()
        self._start()
        self._usage.replaced += 1

    def close(self) -> None:
        """End the process and all processes that it started, and wait until they are dead."""
        process, self._process, self._open = self._process, None, False
        if process is not None:
            self._measure(process)
            process.end()

    def __enter__(self) -> IsolatedPolicy:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        try:
            self._start_process()
        except StartError:
            raise
        except OSError as error:  # no descriptor or no memory is left
            raise StartError(f"{self._name} could not be started: {error}") from error

    def _start_process(self) -> None:
        self._box = Mailbox(Segment(self._layout, sealed=True), fresh=True)
        self._box.bind(*self._spaces)
        self._seen, self._number, self._kind, self._strays = 0, _policy_process.START, 0, 0
        self._started, self._limit_s = False, self._limits.start_s
        self._begin_waiting()
        self._start_at, self._cpu_taken_s = time.monotonic(), 0.0
        with contextlib.ExitStack() as on_failure:
            confinement = None
            if self._sandbox != "no":
                modules, data = self._own
                within = tuple(dict.fromkeys(path for one in modules for path in _sandbox.reach(one, data)))
                # The guard creates the folder, so that the folder is removed even if this process is killed meanwhile.
                folder = os.path.join(tempfile.gettempdir(), f"motet-policy-{secrets.token_hex(8)}")
                on_failure.callback(_sandbox.remove, folder)
                confinement = _sandbox.Confinement(within, folder, self._sandbox == "strict")
            start = PolicyStart(
                *self._parts, self._limits.memory_bytes, self._limits.most_tasks, self._limits.open_files,
                self._limits.folder_bytes, confinement, _GUARDED, new_mark(), _BY_KERNEL,
            )  # fmt: skip
            self._process = PolicyProcess(self._name, self._box.segment, start)
            on_failure.pop_all()
        self._open = True
        self._usage.started += 1


def _checked_sandbox(sandbox: str) -> str:
    if sandbox not in ("no", "best-effort", "strict"):
        raise SettingError(f"sandbox must be 'no', 'best-effort' or 'strict', got {sandbox!r}")
    lacking = "; ".join(_sandbox.gaps()) if sandbox != "no" else ""
    if lacking and sandbox == "strict":
        raise SettingError(
            f"sandbox='strict' is not possible here: this machine lacks {lacking}; fix: use sandbox='best-effort', "
            "which enforces what this machine can"
        )
    if lacking:
        warnings.warn(f"the sandbox is incomplete: this machine lacks {lacking}", RuntimeWarning, stacklevel=3)
    return sandbox


def _mask_form(space: Any) -> MaskForm:
    form = mask_form(space)
    if not form.size:
        raise SettingError(f"masked=True is only valid with an action space that can be masked (got {space!r})")
    return form


def _modules_and_data(spec: PolicySpec) -> tuple[list[str], list[str | os.PathLike[str]]]:
    """Return the modules and the files that a policy needs."""
    modules: list[str] = []
    data: list[Any] = []
    for one in (spec, *_inner_specs(spec)):
        for made in (one.factory, one.translate):
            module = made.partition(":")[0] if isinstance(made, str) else getattr(made, "__module__", None)
            modules += [module] if module else []
        data += [value for name, value in one.arguments.items() if name == "data" or isinstance(value, os.PathLike)]
    return modules, [path for path in data if isinstance(path, str | os.PathLike)]


def _inner_specs(spec: PolicySpec) -> list[PolicySpec]:
    """Return the specs in the arguments of a policy that is made of other policies."""
    parts = [value.values() for value in spec.arguments.values() if isinstance(value, Mapping)]
    return [one for part in parts for one in part if isinstance(one, PolicySpec)]
