"""What help says about a world's flags, and which flags it shows."""

import dataclasses
import inspect
import re
import textwrap

import pytest

from motet.algorithms.catalogue import ALGORITHMS, algorithm_config
from motet.cli import flags, main, play
from motet.cli.help import argument_docs
from motet.evaluation.evaluate import EvaluationSettings
from motet.training.settings import Settings
from motet.worlds.catalogue import WORLDS, world_factory

MODULE = """
    import functools

    from motet.worlds import MatrixGame


    class Documented(MatrixGame):
        def __init__(self, turns: int = 7, colour: str = "red"):
            '''Make one.

            Args:
                turns: how long
                    a game is.
                colour (str): what it is painted with.

            Returns:
                turns: not this.
            '''
            super().__init__(turns=turns)


    def make_env(turns: int = 5):
        '''A world.

        Args:
            turns: how long a game made here is.
        '''
        return MatrixGame(turns=turns)


    short = functools.partial(make_env, turns=3)
    bare = lambda turns=4: MatrixGame(turns=turns)
"""


def shown(arguments, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    return capsys.readouterr().out


def words(text):
    """Without the frame, in one line."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("name", WORLDS)
def test_every_flag_of_a_shipped_world_has_a_text(name, capsys, monkeypatch):
    maker = world_factory(name)
    assert set(argument_docs(maker)) == set(inspect.signature(maker).parameters)
    out = words(shown(["train", name, "--help"], capsys, monkeypatch))
    for flag in re.findall(r"--(?:world\.)([a-z-]+)", out):
        about = argument_docs(maker)[flag.replace("-", "_")]
        assert words(about).replace("'\n", "")[:30] in out, flag


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("Documented", ["How long a game is.", "What it is painted with."]),
        ("make_env", ["How long a game made here is."]),
        ("bare", ["--world.turns INT"]),
    ],
)
def test_texts_of_users_worlds_come_from_their_docstrings(name, texts, tmp_path, capsys, monkeypatch):
    (tmp_path / "painted_worlds.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    for command in ("train", "eval"):
        out = words(shown([command, f"painted_worlds:{name}", "--help"], capsys, monkeypatch))
        assert all(text in out for text in texts) and "not this" not in out
    import painted_worlds

    assert argument_docs(painted_worlds.short) == {"turns": "How long a game made here is."}


def test_common_flags_are_fields_that_exist():
    assert {name for names in flags.COMMON.values() for name in names} <= {f.name for f in dataclasses.fields(Settings)}
    known = {field.name for name in ALGORITHMS for field in dataclasses.fields(algorithm_config(name))}
    assert set(flags.COMMON_OF_ALGORITHMS) <= known
    evaluated = {field.name for field in dataclasses.fields(EvaluationSettings)}
    assert {name for names in play.COMMON.values() for name in names} <= evaluated


@pytest.mark.parametrize("command", ["train", "eval", "tournament"])
def test_help_all_shows_what_help_leaves_out(command, capsys, monkeypatch):
    some = shown([command, "matrix", "--help"], capsys, monkeypatch)
    every = shown([command, "matrix", "--help-all"], capsys, monkeypatch)
    flag = re.compile(r"--[a-z][a-z.-]*")
    assert set(flag.findall(some)) < set(flag.findall(every))
    assert some.endswith(f"motet {command} matrix --help-all shows the other flags.\n")
    assert max(map(len, some.splitlines())) <= 80
    assert "--limits.start-s" in every and "--limits.start-s" not in some
