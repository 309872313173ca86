"""The end of an evaluation: nothing is printed, nothing is left, and no process keeps running."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
from support import TESTS, without_torch
from support.family import runs

import motet
from motet.cli import command as cli
from motet.isolation import process
from motet.isolation.policy import sandbox_gaps
from motet.seeds import seed_for
from motet.worlds import MatrixGame

LINUX = pytest.mark.skipif(not Path("/proc").is_dir(), reason="guards need Linux")

LAST_TURN = textwrap.dedent("""
    import sys
    import motet
    from motet.worlds import TreasureHunt
    from functools import partial

    if __name__ == "__main__":
        world = partial(TreasureHunt, agents=6, size=9, turns=1)
        for _ in range(4):
            result = motet.evaluate(
                world, "support.playing_policies:FailsAt,kw.turn=1", episodes=1, isolate=True, sandbox=sys.argv[1]
            )
            assert sum(map(len, (one.failures for one in result.episodes))) == 6
""")


@LINUX
@pytest.mark.parametrize("sandbox", ["no", "strict"])
def test_failures_in_the_last_turn_print_nothing_and_leave_no_folder(sandbox, tmp_path):
    if sandbox == "strict" and sandbox_gaps():
        pytest.skip("; ".join(sandbox_gaps()))
    (script := tmp_path / "script.py").write_text(LAST_TURN)
    (temporary := tmp_path / "t").mkdir()
    done = subprocess.run(
        [sys.executable, script, sandbox], env=without_torch(TMPDIR=str(temporary)), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert list(temporary.iterdir()) == []


def test_an_unneeded_policy_process_prints_nothing(capfd):
    """The replacement of a policy that failed in the last turn starts when its pipe is closed already."""
    here, there = multiprocessing.Pipe()
    here.close()
    pid = os.fork()
    if pid == 0:
        process._live(None, there, None, -1)  # does not return
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert capfd.readouterr().err == ""


@LINUX
@pytest.mark.parametrize("how", ["done", "stopped early"])
def test_no_guard_is_left_when_evaluate_returns(how, tmp_path):
    """Each policy notes its guard, which is its parent, and its own process."""
    policy = f"support.hostile_zoo:NotesItsGuard,kw.megabytes=100,kw.folder={tmp_path}"
    if how == "done":
        motet.evaluate(MatrixGame, [policy], episodes=4, jobs=2, isolate=True)
    else:  # episode 0 fails when another one is being played
        seed = next(n for n in range(999) if [seed_for(n, 21, k) % 2 for k in range(4)] == [1, 0, 0, 0])
        world = partial(RaisesIfOdd, tmp_path)
        result = motet.evaluate(world, [policy], episodes=4, jobs=2, isolate=True, seed=seed, max_failed_episodes=1)
        assert len(result.episodes) == 1
    noted = [int(path.name) for path in tmp_path.iterdir()]
    assert len(noted) >= 4
    assert [pid for pid in noted if runs(pid)] == []


class RaisesIfOdd(MatrixGame):
    """Raises in one job once the policies of another job have noted themselves and play a long episode."""

    def __init__(self, folder):
        super().__init__(turns=2)
        self.folder = folder

    def reset(self, seed=None, options=None):
        self.turns, deadline = 1_000_000 if seed else 2, time.monotonic() + 20
        while seed and seed % 2 and time.monotonic() < deadline:
            if len(os.listdir(self.folder)) >= 4:
                raise RuntimeError("not this episode")
            time.sleep(0.01)
        return super().reset(seed, options)


def test_isolating_one_policy_does_not_change_the_result():
    here, there = (
        motet.evaluate(MatrixGame, ["random", f"tit_for_tat{how}"], episodes=2) for how in ("", ",isolate=yes")
    )
    assert there.measured.isolated == {"random": False, "tit_for_tat": True}
    assert here.deterministic() == there.deterministic()
    first = motet.evaluate(MatrixGame, ["isolate=no,class=random", "noop,isolate=no,name=a"], episodes=1)
    assert [one["source"] for one in first.policies] == ["class=random", "noop,name=a"]


@pytest.mark.parametrize("command", ["eval", "tournament"])
@pytest.mark.parametrize("flag", ["--out", "--html"])
def test_output_files_are_checked_before_the_first_episode(command, flag, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(TESTS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "folder").mkdir()
    policy = f"support.hostile_zoo:NotesItsGuard,kw.folder={tmp_path / 'notes'}"
    for path in ("missing/file", "folder"):
        assert cli.main([command, "matrix", "-p", policy, "-p", "random", flag, path]) == 2
        assert f"{path!r} cannot be written" in capsys.readouterr().err
    assert list((tmp_path / "notes").iterdir()) == []
    kept = tmp_path / "kept"
    kept.write_text("old")
    assert cli.main([command, "matrix", "-p", "support.hostile_zoo:Missing", "-p", "no_such_policy", flag, "kept"]) == 2
    assert kept.read_text() == "old" and os.listdir(tmp_path / "folder") == []


def test_a_line_is_printed_at_the_first_failure_of_each_policy():
    """While the evaluation runs: after the first episode, not at the end."""
    lines = []
    policies = ["support.playing_policies:FailsAt,name=a", "support.playing_policies:FailsAt,name=b,kw.how=reset"]
    done = []
    motet.evaluate(
        MatrixGame, policies, episodes=3, engine="serial",
        on_message=lambda line: lines.append((len(done), line)), on_progress=lambda *_: done.append(1),
    )  # fmt: skip
    assert lines == [
        (0, "b failed in turn 0 of episode 0 (reset): RuntimeError: no reset"),
        (0, "a failed in turn 6 of episode 0 (exception): RuntimeError: at my turn"),
    ]
    lines.clear()
    motet.tournament(MatrixGame, policies, rounds=1, engine="serial", on_message=lambda line: lines.append((0, line)))
    assert lines[0] == (0, "b failed in turn 0 of game 0 (reset): RuntimeError: no reset") and len(lines) == 2
