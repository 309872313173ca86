"""What a report says about the processes of isolated policies."""

import os
from pathlib import Path

import pytest

import motet
from motet.cli import command as cli
from motet.worlds import MatrixGame

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="usage is measured on Linux")


@pytest.fixture(scope="module")
def result():
    policies = ["tit_for_tat,isolate=yes", "support.playing_policies:FailsAt,isolate=yes,name=fails,kw.turn=5"]
    return motet.evaluate(MatrixGame, policies, episodes=3)


def test_memory_time_and_processes_are_reported(result):
    good, bad = result.measured.usage["tit_for_tat"], result.measured.usage["fails"]
    for one in (good, bad):
        assert 1 << 20 < one.memory_bytes < 1 << 30
        assert 0 < one.cpu_s < 60 and 0 < one.start_s < 60
        assert 0 < one.reset_s / one.resets <= one.longest_reset_s < 60
    seats = [sum(name == policy for one in result.episodes for name in one.policies) for policy in result.names]
    assert (good.replaced, bad.replaced) == (0, 3) and seats == [3, 3]
    assert good.started == len({one.policies.index("tit_for_tat") for one in result.episodes})
    assert bad.started == bad.replaced + len({one.policies.index("fails") for one in result.episodes})
    assert good.resets == bad.resets == 3


def test_the_usage_is_in_the_page_and_in_the_file_but_not_in_the_result(result):
    assert "Policy processes" in result.html()
    assert result.as_dict()["measured"]["usage"]["fails"]["replaced"] == 3
    assert "usage" not in result.result()
    assert "Policy processes" not in motet.evaluate(MatrixGame, "random", episodes=1).html()


def test_the_table_shows_the_processes(capsys):
    cli.main(["eval", "matrix", "-p", "random,isolate=yes", "-p", "noop", "-n", "2"])
    shown = capsys.readouterr().out
    assert "processes of" in shown and "CPU time" in shown
    cli.main(["eval", "matrix", "-p", "random", "-n", "1"])
    assert "processes of" not in capsys.readouterr().out


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root may lower the limits of others")
@pytest.mark.parametrize("isolate", ["yes", "no"])
def test_a_policy_that_changes_the_limits_of_the_job_is_named(isolate):
    """A guard, a server that forks and the job are above an isolated policy."""
    above = 3 if isolate == "yes" else 0
    lines = []
    policies = [f"support.hostile_zoo:LowersItsParentsLimits,name=bad,isolate={isolate},kw.above={above}", "random"]
    result = motet.evaluate(MatrixGame, policies, episodes=2, on_message=lines.append)
    (line,) = [line for line in lines if "limits" in line]
    assert "limits of the job were changed (open files: " in line and " to 900) by " in line and "bad" in line
    assert not result.failures()
