"""What a sandboxed policy cannot do, tried from inside; what it needs and may; the filter, call by call."""

import ctypes
import errno
import fcntl
import os
import platform
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from motet.errors import SettingError
from motet.isolation import sandbox as _sandbox
from motet.isolation import seccomp as _seccomp
from motet.isolation import syscalls as _syscalls
from motet.isolation.policy import IsolatedPolicy, PolicyLimits, sandbox_gaps
from motet.policy import PolicySpec

SEEN, ACTIONS = Box(0, 1, (4,)), Discrete(1000)
ZERO = np.zeros(4, np.float32)
sandboxed = pytest.mark.skipif(bool(sandbox_gaps()), reason="; ".join(sandbox_gaps()))


class Tries:
    """Tries everything there is in ATTEMPTS, and tells what came of it."""

    def __init__(self, folder, attempts):
        self.folder, self.attempts = folder, attempts

    def reset(self, seed):
        for name, attempt in globals()[self.attempts].items():
            try:
                attempt(Path(self.folder))
                outcome = "done"
            except PermissionError:
                outcome = "refused"
            except OSError as error:
                outcome = errno.errorcode[error.errno]
            except (AssertionError, ValueError) as error:
                outcome = repr(error)
            sys.stdout.write(f"{name}: {outcome}\n")

    def act(self, observation, mask=None):
        return 0


def call(number, *arguments):
    """A system call, past everything that Python does before it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), str(number))


def parent():
    return os.getppid()


def listen_and_signal(folder):
    """Let the kernel send a signal to another process, by way of a pipe."""
    reader, _ = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, parent())


def write(path):
    path.write_text("x")
    path.unlink()


REFUSED = {
    "a socket": lambda f: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "a socket of this machine": lambda f: socket.socket(socket.AF_UNIX),
    "a raw socket": lambda f: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "a pair of sockets": lambda f: socket.socketpair(),
    "fork": lambda f: os.fork() or os._exit(0),
    "start a program": lambda f: subprocess.run(["true"], check=True),
    "spawn a program": lambda f: os.posix_spawn("/bin/true", ["true"], {}),
    "become a program": lambda f: os.execv("/bin/true", ["true"]),
    "signal its parent": lambda f: os.kill(parent(), 0),
    "signal everybody": lambda f: os.kill(-1, 0),
    "signal a group": lambda f: os.killpg(os.getpgid(parent()), 0),
    "signal by a descriptor": lambda f: os.pidfd_open(parent()),
    "signal by a pipe": listen_and_signal,
    "trace its parent": lambda f: call({"x86_64": 101, "aarch64": 117}[platform.machine()], 16, parent(), 0, 0),
    "limit its parent": lambda f: resource.prlimit(parent(), resource.RLIMIT_NOFILE),
    "outlive its parent": lambda f: _syscalls.prctl(_syscalls.PR_SET_PDEATHSIG, 0),
    "slow down its parent": lambda f: os.setpriority(os.PRIO_PROCESS, parent(), 19),
    "come first": lambda f: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    "read the environment of its parent": lambda f: Path(f"/proc/{parent()}/environ").read_bytes(),
    "read the memory of its parent": lambda f: os.open(f"/proc/{parent()}/mem", os.O_RDONLY),
    "list processes": lambda f: os.listdir("/proc"),
    "read a file": lambda f: (f / "secret").read_text(),
    "read a file by a link": lambda f: (
        Path(tempfile.gettempdir(), "link").symlink_to(f / "secret") or Path(tempfile.gettempdir(), "link").read_text()
    ),
    "list a folder": lambda f: os.listdir(f),
    "read passwords": lambda f: Path("/etc/passwd").read_text(),
    "list home": lambda f: os.listdir(Path.home()),
    "write a file": lambda f: (f / "new").write_text("x"),
    "write into a file": lambda f: (f / "secret").open("r+"),
    "truncate a file": lambda f: os.truncate(f / "secret", 0),
    "remove a file": lambda f: (f / "secret").unlink(),
    "rename a file": lambda f: (f / "secret").rename(f / "other"),
    "make a folder": lambda f: (f / "folder").mkdir(),
    "take a file over": lambda f: os.link(f / "secret", Path(tempfile.gettempdir(), "mine")),
    "change the mode of a file": lambda f: (f / "secret").chmod(0o777),
    "change the owner of a file": lambda f: os.chown(f / "secret", 1, 1),
    "change the time of a file": lambda f: os.utime(f / "secret"),
    "write to a package": lambda f: write(Path(np.__file__).with_name("was_here")),
    "write home": lambda f: write(Path.home() / "motet-was-here"),
    "a device": lambda f: os.mknod(Path(tempfile.gettempdir(), "disk"), 0o60600, os.makedev(8, 0)),
    "mount": lambda f: call({"x86_64": 165, "aarch64": 40}[platform.machine()], b"none", b"/mnt", b"tmpfs", 0, None),
    "another root": lambda f: os.chroot("/"),
    "its own namespace": lambda f: call({"x86_64": 272, "aarch64": 97}[platform.machine()], 0x10000000),
    "io_uring": lambda f: call(425, 1, None),
    "memory that others can open": lambda f: os.memfd_create("x"),
}
MORE_FILES = {"more files": lambda f: resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999))}
# Those that do no harm where they succeed.
HARMLESS = {
    name: REFUSED[name]
    for name in ("a socket", "start a program", "signal its parent", "read a file", "write a file", "list processes")
}
NOT_THERE = {"a call younger than the list": lambda f: call(463, 0), "clone3": lambda f: call(435, None, 0)}


def write_and_read_back(folder):
    path = Path(tempfile.mkdtemp()) / "mine"
    path.write_text("x" * 1000)
    assert path.read_text() == "x" * 1000
    path.rename(path.with_name("renamed"))
    shutil.rmtree(path.parent)


def run_in_a_thread(folder):
    found = []
    thread = threading.Thread(target=lambda: found.append(sum(range(1000))))
    thread.start()
    thread.join()
    assert found == [499500]


def confined_in_a_thread(folder):
    found = []

    def look():
        try:
            os.listdir(folder)
        except PermissionError:
            found.append("refused")

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == ["refused"]


def learn_a_little(folder):
    import torch

    layer = torch.nn.Linear(32, 32)
    layer(torch.ones(8, 32)).sum().backward()
    torch.save(layer.state_dict(), Path(tempfile.gettempdir(), "weights.pt"))


def call_back(folder):
    """A function that C calls: some libraries need executable memory for it."""
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda a, b: 0)
    ctypes.CDLL(None).qsort((ctypes.c_int * 4)(3, 1, 2, 0), 4, 4, compare)


def see_no_keys(folder):
    allowed = {*_sandbox._ENVIRONMENT, "TMPDIR", "PYGAME_HIDE_SUPPORT_PROMPT"}  # the last is set by a package
    others = [name for name in os.environ if name not in allowed and not name.endswith("_THREADS")]
    assert others == [], others


ALLOWED = {
    "no keys of the environment": see_no_keys,  # first: libraries add to it when they are loaded
    "temporary files": write_and_read_back,
    "nothing to write to": lambda f: Path(os.devnull).write_text("x"),
    "threads": run_in_a_thread,
    "threads that are confined too": confined_in_a_thread,
    "signal itself": lambda f: os.kill(os.getpid(), 0),
    "import what it has not imported yet": lambda f: __import__("xml.dom.minidom"),
    "numbers": lambda f: np.linalg.svd(np.random.default_rng().normal(size=(50, 50))),
    "torch": learn_a_little,
    "callbacks": call_back,
    "its own data": lambda f: (f.parent / "own" / "weights").read_text(),
    "random numbers of the system": lambda f: os.urandom(8),
    "how many cores": lambda f: os.cpu_count(),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))  # where nobody else puts anything
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret").write_text("sesame")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "weights").write_text("12")
    return tmp_path / "private"


def outcomes(folder: Path, attempts: str, sandbox: str) -> dict[str, str]:
    spec = PolicySpec(
        "test_sandbox:Owns", {"folder": str(folder), "attempts": attempts, "data": str(folder.parent / "own")}
    )
    limits = PolicyLimits(reset_s=60, output_bytes=1 << 16)
    temporary = folder.parent / "temporary"
    with IsolatedPolicy(spec, SEEN, ACTIONS, limits=limits, sandbox=sandbox) as policy:
        policy.reset(1)
        assert len(list(temporary.glob("motet-policy-*"))) == (sandbox != "no")
        policy.act(ZERO)
    assert list(temporary.iterdir()) == []
    return dict(line.split(": ", 1) for line in policy.output.splitlines())


class Owns(Tries):
    def __init__(self, folder, attempts, data):
        super().__init__(folder, attempts)


@sandboxed
@pytest.mark.usefixtures("no_leaks")
def test_the_sandbox_refuses_forbidden_operations(folder):
    """Run as root and as anybody."""
    expected = dict.fromkeys(REFUSED, "refused") | {"take a file over": "EXDEV"}  # as if it were on another disk
    assert outcomes(folder, "REFUSED", "strict") == expected
    assert (folder / "secret").read_text() == "sesame"
    assert [path.name for path in folder.iterdir()] == ["secret"]
    assert outcomes(folder, "NOT_THERE", "strict") == dict.fromkeys(NOT_THERE, "ENOSYS")


@sandboxed
@pytest.mark.usefixtures("no_leaks")
def test_the_sandbox_allows_needed_operations(folder):
    assert outcomes(folder, "ALLOWED", "strict") == dict.fromkeys(ALLOWED, "done")


@pytest.mark.usefixtures("no_leaks")
def test_without_a_sandbox_the_operations_succeed(folder):
    """The attempts are real ones."""
    assert outcomes(folder, "HARMLESS", "no") == dict.fromkeys(HARMLESS, "done")


@pytest.mark.usefixtures("no_leaks")
def test_limits_cannot_be_raised_not_by_root_either(folder):
    assert outcomes(folder, "MORE_FILES", "no") == {"more files": "ValueError('not allowed to raise maximum limit')"}


def test_a_kernel_without_sandbox_support_is_an_error_or_a_warning(monkeypatch):
    monkeypatch.setattr(_sandbox, "_landlock_version", lambda: -1)
    assert len(sandbox_gaps()) == 1
    with pytest.raises(SettingError, match=r"Landlock version 3 or later.*'best-effort'"):
        IsolatedPolicy(PolicySpec("motet.policy:RandomPolicy"), SEEN, ACTIONS, sandbox="strict")
    with (
        pytest.warns(RuntimeWarning, match="the sandbox is incomplete: this machine lacks Landlock"),
        IsolatedPolicy(PolicySpec("motet.policy:RandomPolicy"), SEEN, ACTIONS, sandbox="best-effort") as policy,
    ):
        policy.reset(1)
    with pytest.raises(SettingError, match="sandbox must be 'no', 'best-effort' or 'strict', got 'yes'"):
        IsolatedPolicy(PolicySpec("motet.policy:RandomPolicy"), SEEN, ACTIONS, sandbox="yes")


def test_readable_paths_exclude_home_and_temporary_files(tmp_path, monkeypatch):
    (tmp_path / "their_policy.py").touch()
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), str(Path.home()), ""])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # below a folder that modules are imported from
    monkeypatch.chdir(tmp_path)
    found = _sandbox.reach("their_package.policies", ["their_policy.py"])
    assert str(tmp_path) not in found
    assert {str(tmp_path / "their_package"), str(tmp_path / "their_policy.py")} <= set(found)
    assert str(Path(np.__file__).parent.parent) in found or sys.prefix in found


def test_a_folder_is_removed_however_deep_and_closed_it_is(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").touch()
    here = os.open(root, os.O_RDONLY)
    for _ in range(1200):
        os.symlink(keep, "link", dir_fd=here)
        os.mkdir("deeper", 0o700, dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.mkdir("closed", 0, dir_fd=here)
    os.close(here)
    _sandbox.remove(str(root))
    assert not root.exists()
    assert (keep / "file").exists()
    _sandbox.remove(str(root))  # nothing to do


# ---- the filter, as the kernel would run it, for both architectures


def decide(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    words = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number, architecture or _seccomp.ARCHITECTURES[machine][1], 0, *words)
    lines, at, value = _seccomp._filter(machine, 4242), 0, 0
    while True:
        code, yes, no, operand = lines[at]
        at += 1
        if code == _seccomp._RETURN:
            return operand
        if code == _seccomp._LOAD:
            value = struct.unpack_from("=I", data, operand)[0]
        else:
            holds = {
                _seccomp._EQUAL: value == operand,
                _seccomp._GREATER: value > operand,
                _seccomp._ANY_BIT: bool(value & operand),
            }[code]
            at += yes if holds else no


REFUSE, NONE, KILL = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000
ALLOW = 0x7FFF0000


@pytest.mark.parametrize("machine", _seccomp.ARCHITECTURES)
def test_the_filter_decides_call_by_call(machine):
    column = _seccomp.ARCHITECTURES[machine][0]
    for name, numbers in _seccomp._REFUSED.items():
        if numbers[column]:
            assert decide(machine, numbers[column]) == REFUSE, name
    for number in {"x86_64": (0, 1, 9, 202, 257), "aarch64": (63, 64, 222, 98, 56)}[
        machine
    ]:  # read write mmap futex openat
        assert decide(machine, number) == ALLOW
    clone = _seccomp._CLONE[column]
    assert decide(machine, clone, 0x3D0F00) == ALLOW  # what pthread_create asks for
    for flags in (signal.SIGCHLD, 0x4100 | signal.SIGCHLD, 0x10000 | 0x40000000, 0x10000 | 0x20000):
        assert decide(machine, clone, flags) == REFUSE
    for numbers in _seccomp._ON_ITSELF_ALONE.values():
        assert [decide(machine, numbers[column], pid) for pid in (0, 4242, 1, 2**32 - 1)] == [
            ALLOW,
            ALLOW,
            REFUSE,
            REFUSE,
        ]
    assert decide(machine, _seccomp._PRCTL[column], 1) == REFUSE
    assert decide(machine, _seccomp._PRCTL[column], 15) == ALLOW
    assert [decide(machine, _seccomp._FCNTL[column], 0, c) for c in (8, 10, 15, 3)] == [REFUSE, REFUSE, REFUSE, ALLOW]
    assert [decide(machine, _seccomp._IOCTL[column], 0, c) for c in (0x5412, 0x8901, 0x5401)] == [REFUSE, REFUSE, ALLOW]
    assert decide(machine, 435) == NONE
    assert decide(machine, 463) == NONE
    assert decide(machine, 1, architecture=0x40000003) == KILL
    if machine == "x86_64":
        assert decide(machine, 0x40000000 | 41) == KILL


def test_a_filter_fits_the_kernel():
    for machine in _seccomp.ARCHITECTURES:
        lines = _seccomp._filter(machine, 1)
        assert len(lines) <= 4096
        assert all(max(yes, no) <= 255 for _, yes, no, _ in lines)
