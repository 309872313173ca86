"""Segments: no name, no leak, really there, handed on to children."""

import errno
import gc
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest

from motet.arrays import ArraySpec
from motet.errors import MemoryShortError, MotetError, SettingError
from motet.system import machine as _machine
from motet.system import memory as _memory
from motet.system.machine import available_bytes
from motet.system.memory import LINE, Segment, format_bytes

pytestmark = pytest.mark.usefixtures("no_leaks")

SPEC = {"status": ArraySpec((3,), "uint64"), "odd": ArraySpec((7,), "uint8"), "flat": ArraySpec((5, 2), "float32")}


def test_arrays_begin_on_their_own_cache_line():
    segment = Segment(SPEC)
    places = [segment[name].ctypes.data for name in SPEC]
    assert all(place % LINE == 0 for place in places)
    assert len({place // LINE for place in places}) == 3
    assert [segment[name].shape for name in SPEC] == [(3,), (7,), (5, 2)]
    assert "flat" in segment and "other" not in segment


def test_fresh_memory_is_poisoned():
    segment = Segment(
        {"f4": ArraySpec((9,), "float32"), "f8": ArraySpec((9,), "float64"), "i": ArraySpec((9,), "int32")}
    )
    assert np.isnan(segment["f4"]).all() and np.isnan(segment["f8"]).all()
    assert (segment["i"] == -1).all()


def test_arrays_do_not_overlap():
    segment = Segment(SPEC)
    for value, name in enumerate(SPEC):
        segment[name][...] = value
    assert [segment[name].max() for name in SPEC] == [segment[name].min() for name in SPEC] == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memfd is Linux")
def test_has_no_name_anywhere():
    segment = Segment(SPEC)
    link = os.readlink(f"/proc/self/fd/{segment._fd}")
    assert link.startswith("/memfd:") and link.endswith("(deleted)")
    assert os.fstat(segment._fd).st_nlink == 0


def test_a_file_has_no_name_either(tmp_path):
    segment = Segment(SPEC, directory=tmp_path)
    segment["flat"][...] = 3
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(segment._fd).st_nlink == 0


def test_without_tmpfile_a_file_is_unlinked_at_once(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", False)
    segment = Segment(SPEC, directory=tmp_path)
    assert list(tmp_path.iterdir()) == [] and os.fstat(segment._fd).st_nlink == 0


def test_room_is_really_reserved(tmp_path):
    size = 1 << 20
    for directory in (None, tmp_path):
        segment = Segment({"a": ArraySpec((size,), "uint8")}, directory)
        assert os.fstat(segment._fd).st_blocks * 512 >= size


def test_memory_comes_back_when_the_last_array_goes():
    segment = Segment({"a": ArraySpec((1 << 20,), "uint8")})
    array = segment["a"]
    del segment
    gc.collect()
    array[:] = 1  # the mapping lives as long as an array into it
    assert "memfd:motet" in Path("/proc/self/maps").read_text()
    del array
    gc.collect()
    assert "memfd:motet" not in Path("/proc/self/maps").read_text()


def test_a_failed_mapping_closes_its_descriptor_once(monkeypatch):
    class NoMapping:
        MAP_SHARED = PROT_READ = PROT_WRITE = 0

        @staticmethod
        def mmap(*_args: object) -> None:
            raise OSError(errno.ENOMEM, "no mapping")

    closed: list[int] = []
    close = os.close
    monkeypatch.setattr(_memory, "mmap", NoMapping)
    monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), close(fd)))
    with pytest.raises(OSError, match="no mapping"):
        Segment(SPEC)
    gc.collect()
    assert len(closed) == 1


# ---- handing it on


def _add(segment: Segment, value: int) -> None:
    segment["flat"][...] += value


def test_children_started_at_once_and_later_share_it(any_context):
    segment = Segment(SPEC)
    segment["flat"][...] = 0
    for value in (1, 10):  # the second child is started when the first is long gone
        child = any_context.Process(target=_add, args=(segment, value))
        child.start()
        child.join()
        assert child.exitcode == 0
        child.close()
    assert (segment["flat"] == 11).all()


def _add_both(first: Segment, second: Segment, same: list[bool]) -> None:
    assert (first is second) == same[0]
    first["flat"][...] += 1


def test_one_segment_given_twice_arrives_once(context):
    segment, other = Segment(SPEC), Segment(SPEC)
    segment["flat"][...] = 0
    for second in (segment, other):
        child = context.Process(target=_add_both, args=(segment, second, [second is segment]))
        child.start()
        child.join()
        assert child.exitcode == 0
        child.close()
    assert (segment["flat"] == 2).all()


def test_cannot_be_pickled_outside_the_start_of_a_process():
    with pytest.raises(MotetError, match="pass it to a process as one of its arguments"):
        pickle.dumps(Segment(SPEC))


# ---- too little of it


def test_too_little_memory_is_reported_before_anything_is_created(monkeypatch):
    made: list[str] = []
    monkeypatch.setattr(_memory, "available_bytes", lambda _directory=None: 1000)
    monkeypatch.setattr(os, "memfd_create", lambda *_: made.append("memfd"))
    with pytest.raises(MemoryShortError, match=r"9\.8 KiB of memory needed, 1000 bytes available: choose a smaller"):
        Segment({"a": ArraySpec((10_000,), "uint8")})
    assert made == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM, errno.EFBIG])
def test_a_full_file_system_is_a_clear_error(tmp_path, monkeypatch, code):
    def full(*_args: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MemoryShortError, match=r"on the file system of .* needed, .* available"):
        Segment(SPEC, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_too_small_directory_is_reported_before_writing(tmp_path):
    with pytest.raises(MemoryShortError, match=r"TiB on the file system of .* needed"):
        Segment({"a": ArraySpec((1 << 60,), "uint8")}, directory=tmp_path)


def test_sizes_do_not_wrap_around():
    with pytest.raises(MemoryShortError, match="TiB"):
        Segment({"a": ArraySpec((2**40, 2**40), "uint8")})


def test_a_missing_directory_is_a_setting_error(tmp_path):
    with pytest.raises(SettingError, match=r"directory must be an existing folder, got '.*nowhere'"):
        Segment(SPEC, directory=tmp_path / "nowhere")


@pytest.mark.parametrize("shape", [(-1,), (1.5,), ("3",)])
def test_bad_shapes(shape):
    with pytest.raises(SettingError, match="shape must be ints >= 0, got"):
        ArraySpec(shape)


def test_objects_cannot_be_shared():
    with pytest.raises(SettingError, match="dtype must be a dtype without Python objects, got 'O'"):
        ArraySpec((3,), "O")


# ---- limits of a machine, told by a fake one


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A fake /proc and /sys: write files, then ask for available_bytes()."""

    def write(path: str, text: str) -> None:
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    monkeypatch.setattr(_machine, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    monkeypatch.setattr(_machine, "HEADROOM", 1.0)
    write("/proc/meminfo", "MemTotal: 999 kB\nMemFree: 1 kB\nMemAvailable: 100 kB\n")
    return write


def test_free_memory_is_the_limit_where_there_is_no_group(machine):
    assert available_bytes() == 100 * 1024
    machine("/proc/self/cgroup", "0::/\n")
    assert available_bytes() == 100 * 1024


def test_the_tightest_group_on_the_way_to_the_root_counts(machine):
    machine("/proc/self/cgroup", "0::/a/b\n")
    for folder, limit, used in (("a", "50000", 20000), ("a/b", "max", 7)):
        machine(f"/sys/fs/cgroup/{folder}/memory.max", limit + "\n")
        machine(f"/sys/fs/cgroup/{folder}/memory.current", f"{used}\n")
        machine(f"/sys/fs/cgroup/{folder}/memory.stat", "anon 5\ninactive_file 1000\n")
    assert available_bytes() == 50000 - 20000 + 1000
    machine("/sys/fs/cgroup/a/b/memory.max", "10007\n")
    assert available_bytes() == 10000 + 1000


def test_version_1_groups(machine):
    machine("/proc/self/cgroup", "12:cpu,cpuacct:/x\n7:memory:/job\n0::/\n")
    machine("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "30000\n")
    machine("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "10000\n")
    machine("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 9\ntotal_inactive_file 500\n")
    assert available_bytes() == 30000 - 10000 + 500


def test_a_group_that_is_over_its_limit_leaves_nothing(machine):
    machine("/proc/self/cgroup", "0::/\n")
    for name, text in (("max", "10"), ("current", "20"), ("stat", "")):
        machine(f"/sys/fs/cgroup/memory.{name}", text)
    assert available_bytes() == 0
    with pytest.raises(MemoryShortError, match="64 bytes of memory needed, 0 bytes available"):
        Segment({"a": ArraySpec((1,), "uint8")})


def test_sizes_are_formatted():
    assert [format_bytes(n) for n in (1, 1023, 1024, 5 << 20, 7 << 40)] == [
        "1 bytes", "1023 bytes", "1.0 KiB", "5.0 MiB", "7.0 TiB",
    ]  # fmt: skip
