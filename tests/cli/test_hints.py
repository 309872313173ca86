"""Names of other libraries and spelling mistakes lead to motet's own names."""

import dataclasses
import importlib
import multiprocessing
import subprocess
import sys
from functools import partial

import gymnasium
import pytest

import motet
from motet.algorithms import DQNConfig
from motet.algorithms.catalogue import ALGORITHMS, algorithm_config
from motet.cli import main
from motet.cli.command import COMMANDS
from motet.cli.command import _flags as _flags_of
from motet.cli.eval import EvalFlags
from motet.cli.hints import _OTHER, _OTHERS, foreign
from motet.cli.play import _flags, static_flags
from motet.errors import SettingError
from motet.evaluation.evaluate import EvaluationSettings
from motet.foreign_names import EVALUATION, TRAINING, advice
from motet.system.child import check_main_guard
from motet.training.settings import Settings
from motet.world import as_world

SETTINGS = {item.name for item in dataclasses.fields(Settings)} | {"run", "agents"}
OF_ALGORITHMS = {name: {item.name for item in dataclasses.fields(algorithm_config(name))} for name in ALGORITHMS}


@pytest.mark.parametrize("ours", TRAINING)
def test_every_name_that_is_suggested_exists(ours):
    if ours.startswith("."):
        assert any(ours[1:] in fields for fields in OF_ALGORITHMS.values())
    else:
        assert ours in SETTINGS


def test_no_foreign_name_is_one_of_ours_or_has_two_meanings():
    names = {name for group in TRAINING.values() for name in group}
    assert not names & (SETTINGS | set().union(*OF_ALGORITHMS.values()))
    assert not [name for name in names if advice(name)]
    for name in names:
        meanings = [ours for ours, theirs in TRAINING.items() if name in theirs]
        # n_steps is the length of a fragment in PPO, and the n-step return elsewhere.
        assert len(meanings) == 1 or all(ours.startswith(".") for ours in meanings), name


def test_a_name_that_means_different_settings_follows_the_algorithm():
    assert foreign("n_steps", "ppo") == "--ppo.length" and foreign("n_steps", "dqn") == "--dqn.n-step"
    assert foreign("minibatch_size", "ppo") == "--ppo.minibatches"
    assert foreign("minibatch_size", "dqn") == "--dqn.batch-size"


def test_a_setting_that_the_algorithm_does_not_have_is_not_suggested():
    assert foreign("tau", "dqn") == "--dqn.target-rate"
    assert foreign("tau", "ppo") == "" and foreign("buffer-size", "ppo") == ""


@pytest.mark.parametrize(
    "given, hint",
    [
        ("--num-workers 4", "--num-workers is not a flag of motet train; use --actors"),
        ("--weight-sync-interval=5", "use --publish-every"),
        ("--buffer-size 10", "use --dqn.capacity"),
        ("--algorithm iqn --Buffer_Size 10", "use --iqn.capacity"),
        ("--warmup 10", "use --dqn.min-rows"),
        ("--lr 0.1", "use --dqn.learning-rate"),
        ("--batch-size 8", "use --dqn.batch-size"),
        ("--total-timesteps 10", "use --steps"),
        ("--async-training", "training is asynchronous unless"),
        ("--parallel-policy", "motet eval and motet tournament have it: --isolate"),
        ("--use-gpu", "use --device auto"),
        ("--env x", "the world is the first argument"),
        ("--ppo.gamma 0.9", "the algorithm is dqn: use --dqn.gamma, or --algorithm ppo"),
        ("--stepps 10", "did you mean --steps?"),
        ("--dqn.gama 0.9", "did you mean --dqn.gamma?"),
        ("--world.turnss 9", "did you mean --world.turns?"),
        ("--world.agents 9", "did you mean --agents?"),
        ("--ppo.clip 0.9", "the algorithm is dqn: use --algorithm ppo"),
        ("--ent-coef 0.1", "dqn has no such setting; with another algorithm it is --ppo.entropy"),
        ("--gama 0.9", "did you mean --dqn.gamma?"),
        ("--qqqqq", "motet train WORLD --help-all lists all flags"),
        ("another", "motet train takes one world and flags, got also another"),
        ("ppo", "got also ppo; use --algorithm ppo"),
        ("--dqn.lr 0.1", "use --dqn.learning-rate"),
        ("--dqn.buffer-size 9", "use --dqn.capacity"),
        ("--train_freq 4", "use --updates-per-step (updates of a learner for each step of its agent)"),
        ("--num-epochs 4", "with another algorithm it is --ppo.epochs"),
        ("--capture-video", "motet eval RUN --video FILE.gif"),
        ("--resume runs/x", "motet resume RUN continues a run"),
        ("--frameskip 4", "motet repeats no actions"),
        ("--local-mode", "use --engine serial"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_one_that_was_meant(given, hint, capsys):
    assert main(["train", "matrix", *given.split()]) == 2
    error = capsys.readouterr().err
    assert hint in error and error.startswith("error: ")


@pytest.mark.parametrize(
    "given, hint",
    [
        ("eval matrix -p random --parallel-policy", "--parallel-policy is not a flag of motet eval; use --isolate"),
        ("tournament matrix -p random -p noop --parallel-policy", "of motet tournament; use --isolate"),
        ("eval matrix -p random --num-episodes 3", "use --episodes"),
        ("tournament matrix -p random -p noop --num-episodes 3", "motet tournament WORLD --help-all lists all flags"),
        ("eval matrix -p random --decision-timeout=3", "use --limits.decision-s"),
        ("eval matrix -p random --isolat", "did you mean --isolate?"),
        ("eval matrix -p random --world.turnss 3", "did you mean --world.turns?"),
        ("eval matrix random", "takes one world and flags, got also random; give policies with -p"),
    ],
)
def test_an_unknown_flag_of_eval_and_tournament_is_answered_with_the_one_that_was_meant(given, hint, capsys):
    assert main(given.split()) == 2
    error = capsys.readouterr().err
    assert hint in error and error.startswith("error: ")


def test_every_flag_of_eval_that_is_suggested_exists():
    known = set(_flags(static_flags(EvalFlags)))
    assert {f"--{ours}".replace("_", "-") for ours in EVALUATION} <= known
    assert not {f"--{theirs}".replace("_", "-") for names in EVALUATION.values() for theirs in names} & known


def test_an_unknown_key_of_a_world_is_answered_with_the_one_that_was_meant(tmp_path, capsys):
    path = tmp_path / "experiment.toml"
    path.write_text('[world]\nname = "treasure_hunt"\nagnts = 3\ntotal_timesteps = 5\n')
    assert main(["train", str(path)]) == 2
    error = capsys.readouterr().err
    assert "agnts (did you mean agents?), total_timesteps (use steps, at the top of the file)" in error


def test_a_misspelt_parameter_of_a_world_without_a_prefix_is_found(capsys):
    assert main(["train", "treasure_hunt", "--agnts", "3"]) == 2
    assert "did you mean --agents?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given, hint",
    [
        ("report --output x.html", "--output is not a flag of motet report; use --out"),
        ("report a --outt x.html", "did you mean --out?"),
        ("resume a --total-timesteps 9", "--total-timesteps is not a flag of motet resume; use --steps"),
        ("plan rooms --discount 0.9", "--discount is not a flag of motet plan; use --humans.gamma"),
        ("plan rooms --gama 0.9", "did you mean --humans.gamma?"),
        ("plan bushs", "did you mean bushes?"),
        ("status a b", "motet status takes no argument b; see motet status --help"),
        ("eval matrix -p randm", "did you mean random?"),
    ],
)
def test_mistakes_in_other_commands_are_answered_before_anything_runs(given, hint, capsys):
    assert main(given.split()) == 2
    error = capsys.readouterr().err
    assert hint in error and error.startswith("error: ")


@pytest.mark.parametrize("command", ["report", "resume", "plan", "status", "watch"])
def test_every_flag_of_other_commands_that_is_suggested_exists(command):
    module, function = COMMANDS[command][0].split(":")
    known = set(_flags_of(getattr(importlib.import_module(module), function)))
    for theirs, ours in _OTHERS.items():
        if f"--{ours}".replace("_", "-") in known:
            assert f"--{theirs}".replace("_", "-") not in known
    assert known & {f"--{ours}".replace("_", "-") for ours in _OTHER} or command == "status"


def test_a_module_without_a_name_and_a_misspelt_name_in_it_are_answered(tmp_path, monkeypatch, capsys):
    (tmp_path / "hints_tag.py").write_text("class TagEnv: ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for given in ("hints_tag.py", "hints_tag"):
        assert main(["train", given]) == 2
        assert "for a name in hints_tag.py, write hints_tag:NAME" in capsys.readouterr().err
    assert main(["train", "hints_tag:TagEnvv"]) == 2
    assert "did you mean hints_tag:TagEnv?" in capsys.readouterr().err
    assert main(["train", "hints_tag:Screen"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("given, ours", [("trian", "train"), ("Train", "train"), ("learn", "train"), ("play", "eval")])
def test_a_misspelt_or_foreign_command_is_answered_with_the_one_that_was_meant(given, ours, capsys):
    assert main([given, "matrix"]) == 2
    assert f"did you mean motet {ours}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given, hint",
    [
        ("Tresure-Hunt", "did you mean treasure_hunt?"),
        ("CartPole-v1", "for a Gymnasium environment write gym:CartPole-v1"),
        ("pettingzoo.classic.rps_v2", "write pettingzoo.classic.rps_v2:parallel_env"),
        ("rps_v2", "for a PettingZoo environment write MODULE:parallel_env"),
        ("matrix --algorithm DQN", "did you mean dqn?"),
        ("matrix --algorithm sac", "for the same worlds there is td3"),
    ],
)
def test_a_misspelt_world_or_algorithm_is_answered_with_the_one_that_was_meant(given, hint, capsys):
    assert main(["train", *given.split()]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, hint",
    [
        ("total_timesteps = 5", "keys must be valid, got total_timesteps (use steps)"),
        ("colour = 5", "keys must be some of actors, agents, ahead, algorithm,"),
        ("[train]\nsteps = 5", "train (write the settings at the top of the file, without [train])"),
        ('[algorithm]\nname = "dqn"', 'write algorithm = "dqn", and its settings below [dqn]'),
        ("async_training = true", "async_training (training is asynchronous unless you set engine serial"),
        ("ent_coef = 0.1", "ent_coef (another algorithm has it: entropy of ppo)"),
        ("[dqn]\ntau = 0.1", "tau (use target_rate)"),
        ("stepps = 5", "stepps (did you mean steps?)"),
        ("buffer_size = 5", "buffer_size (use capacity in [dqn])"),
        ("[ppo]\ngamma = 0.9", "ppo (the algorithm is dqn)"),
        ("[dqn]\nlr = 0.1", "lr (use learning_rate)"),
    ],
)
def test_an_unknown_key_of_a_file_is_answered_with_the_one_that_was_meant(text, hint, tmp_path, capsys):
    path = tmp_path / "experiment.toml"
    path.write_text(f'{text.partition("[")[0]}\n[world]\nname = "matrix"\n{"".join(text.partition("[")[1:])}')
    assert main(["train", str(path)]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("given, steps", [("1e2", 100), ("1_00", 100), ("100", 100)])
def test_whole_numbers_may_be_written_as_people_write_them(given, steps, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "matrix", "--steps", given, "--engine", "serial", "--dqn.min-rows", "1e3"]) == 0
    assert f"done after {steps} steps" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["1.5", "x", "1e-2", "inf", "1e999"])
def test_values_that_are_not_whole_numbers_are_refused(given, capsys):
    with pytest.raises(SystemExit):
        main(["train", "matrix", "--steps", given])
    assert f"expected a whole number, got '{given}'" in capsys.readouterr().err


def test_a_run_is_not_mixed_with_other_files(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["train", "matrix", "--run", str(tmp_path), "--steps", "10", "--engine", "serial"]) == 2
    assert "run must be a new or empty directory, got" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_one_number_for_a_tuple_gets_the_tuple():
    with pytest.raises(SettingError, match=r"hidden must be a tuple of one or more ints >= 1, got 64; write \(64,\)"):
        DQNConfig(hidden=64)


def test_a_vector_environment_leads_to_worlds_per_actor():
    with pytest.raises(SettingError, match=r"give a single one, and set worlds_per_actor \(--worlds-per-actor\)"):
        as_world(gymnasium.make_vec("CartPole-v1", num_envs=2))


class Screen(gymnasium.Env):
    """A world of pictures, with a given dtype."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, dtype):
        self.observation_space = gymnasium.spaces.Box(0, 255 if dtype == "uint8" else 1, (16, 16, 3), dtype)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, True, {}


@pytest.mark.parametrize("dtype, messages", [("float32", 1), ("uint8", 0)])
def test_a_picture_that_is_about_to_be_flattened_is_mentioned_once(dtype, messages):
    said = []
    motet.train(partial(Screen, dtype), "dqn", motet.Settings(steps=5, engine="serial"), on_message=said.append)
    found = [line for line in said if "give it as uint8 from 0 to 255" in line]
    assert len(found) == messages == len(said)


def test_the_result_of_a_run_fits_a_screen():
    result = motet.train("matrix", "dqn", motet.Settings(steps=5, engine="serial"))
    assert result.agents and len(repr(result)) < 1000


def test_a_missing_main_guard_in_a_script_that_evaluates_is_explained(tmp_path):
    script = tmp_path / "script.py"
    script.write_text('import motet\nmotet.evaluate("matrix", "random", jobs=2, episodes=4)\n')
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "if __name__ == '__main__':" in last and "isolate the policies" not in last
    assert done.stderr.count("main guard") == 1


def test_a_missing_main_guard_in_a_script_that_trains_is_explained_before_a_run_begins(tmp_path):
    script = tmp_path / "script.py"
    script.write_text('import motet\n\n\ndef main():\n    motet.train("matrix", run="runs/mine")\n\n\nmain()\n')
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and not (tmp_path / "runs").exists()
    assert len(done.stderr.splitlines()) < 15 and "if __name__ == '__main__':" in done.stderr.splitlines()[-1]


def test_a_script_with_a_main_guard_starts_processes(tmp_path):
    script, guard = tmp_path / "script.py", "if __name__ == '__main__':"
    call = "motet.evaluate('matrix', 'random', jobs=2, episodes=2)"
    script.write_text(f"import motet\n{guard}\n    {call}\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_frames_that_a_world_suggests_can_be_turned_off_in_self_play(capsys):
    assert main(["train", "treasure_hunt", "--self-play", "--steps", "10", "--engine", "serial"]) == 2
    assert "if the world suggests it, set n_frames to 1 (--ALGORITHM.n-frames 1)" in capsys.readouterr().err


def test_a_missing_main_guard_is_one_line_in_the_child(monkeypatch, capsys):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SystemExit):
        check_main_guard()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "make, hint",
    [
        (lambda: Settings(num_workers=4), "unexpected keyword argument 'num_workers'; use actors"),
        (lambda: Settings(train_freq=4), "use updates_per_step (updates of a learner"),
        (lambda: Settings(lr=0.1), "use learning_rate in the algorithm's config"),
        (lambda: Settings(async_training=True), "training is asynchronous unless"),
        (lambda: Settings(Steps=9), "did you mean steps?"),
        (lambda: DQNConfig(lr=0.1), "DQNConfig() got an unexpected keyword argument 'lr'; use learning_rate"),
        (lambda: DQNConfig(buffer_size=9), "use capacity"),
        (lambda: DQNConfig(n_envs=9), "use worlds_per_actor in Settings"),
        (lambda: DQNConfig(ent_coef=0.1), "this algorithm has no such setting; in others it is entropy"),
        (lambda: DQNConfig(gama=0.9), "did you mean gamma?"),
        (lambda: EvaluationSettings(num_workers=4), "use jobs"),
    ],
)
def test_an_unknown_argument_of_a_settings_class_is_answered_with_the_one_that_was_meant(make, hint):
    with pytest.raises(TypeError) as caught:
        make()
    assert hint in str(caught.value)


def test_every_settings_class_of_algorithms_suggests_names():
    for name in ALGORITHMS:
        with pytest.raises(TypeError, match="; use learning_rate"):
            type(algorithm_config(name))(lr=0.1)


def test_an_unknown_setting_of_evaluate_is_answered_with_the_one_that_was_meant():
    with pytest.raises(SettingError, match=r"got n_episodes \(use episodes\)"):
        motet.evaluate("matrix", ["random"], n_episodes=3)


@pytest.mark.parametrize(
    "world, hint",
    [
        (gymnasium.make("CartPole-v1"), "give the class or function that makes it"),
        (gymnasium.make_vec("CartPole-v1", num_envs=2), "set worlds_per_actor"),
    ],
)
def test_an_environment_instead_of_what_makes_it_is_refused_with_advice(world, hint):
    with pytest.raises(SettingError, match=hint):
        motet.train(world, "dqn", Settings(steps=10, engine="serial"))


@pytest.mark.parametrize("command", ["train matrix --steps", "resume runs/none --steps", "eval matrix --episodes"])
def test_what_is_not_a_number_is_named_without_the_types_that_were_tried(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "many"])
    error = capsys.readouterr().err
    assert "expected a whole number" in error and "got 'many'" in error and "NoneType" not in error


def test_a_page_as_the_file_for_json_is_refused(capsys):
    assert main(["eval", "matrix", "-p", "random", "--out", "x.html"]) == 2
    assert "for a page use --html x.html" in capsys.readouterr().err
