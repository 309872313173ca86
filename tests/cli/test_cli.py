"""The command line: what it prints, which code it ends with, what it does not import."""

import json
import os
import subprocess
import sys

import pytest

from motet.cli import command as cli
from motet.cli import doctor as _doctor
from motet.errors import SettingError


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "motet.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        check=False,
    )


def fail() -> None:
    raise SettingError("colour: given 'blue', expected 'red'")


def interrupt() -> None:
    raise KeyboardInterrupt


def answer(number: int = 0) -> int:
    return number


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {name: (f"{__name__}:{name}", "for this test") for name in ("fail", "interrupt", "answer")}
    monkeypatch.setattr(cli, "COMMANDS", table)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)


def test_every_command_can_be_imported_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--help"])
        assert ended.value.code == 0
        assert f"motet {name}" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'ray', 'tyro', 'rich'}"
    code = f"import sys; from motet import cli; cli.main(['--help']); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.usefixtures("commands")
def test_an_error_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fail"]) == 2
    assert capsys.readouterr().err == "error: colour: given 'blue', expected 'red'\n"


@pytest.mark.usefixtures("commands")
def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_DEBUG", "1")
    with pytest.raises(SettingError):
        cli.main(["fail"])


@pytest.mark.usefixtures("commands")
def test_interrupt_is_code_130() -> None:
    assert cli.main(["interrupt"]) == 130


@pytest.mark.usefixtures("commands")
def test_what_a_command_returns_is_the_code() -> None:
    assert cli.main(["answer"]) == 0
    assert cli.main(["answer", "--number", "3"]) == 3


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert "got 'trian'" in capsys.readouterr().err


def test_unknown_bench_is_an_error_without_traceback() -> None:
    done = run("bench", "speed")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: bench must be one of ")


def test_doctor_as_json() -> None:
    done = run("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["ok"]
    findings = {f["name"]: f for f in report["findings"]}
    expected = {
        "native core",
        "shared memory",
        "cores",
        "start method",
        "open files",
        "torch",
        "kernel",
        "ray",
        "cpprb",
    }
    assert expected <= set(findings)
    assert {f["verdict"] for f in findings.values()} <= {"ok", "warning", "missing"}
    assert all(f["advice"] for f in findings.values() if f["verdict"] != "ok")


def test_doctor_as_a_table() -> None:
    done = run("doctor", COLUMNS="100")
    assert done.returncode == 0
    assert "shared memory" in done.stdout and "everything that motet needs is available" in done.stdout


def test_doctor_ends_with_1_if_the_core_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "motet._native", None)
    monkeypatch.setattr(_doctor, "_torch", lambda: [_doctor.Finding("torch", "ok", "not looked at")])
    assert _doctor.doctor(json=True) == 1
    report = json.loads(capsys.readouterr().out)
    core = next(f for f in report["findings"] if f["name"] == "native core")
    assert not report["ok"] and core["verdict"] == "missing" and "compiler" in core["advice"]


def test_doctor_wants_an_existing_directory() -> None:
    done = run("doctor", "--directory", "no/such/folder")
    assert done.returncode == 2 and "no/such/folder" in done.stderr
