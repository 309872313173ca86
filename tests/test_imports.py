"""Allowed imports. The rules keep every part usable on its own, and actors and learners separate."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

SOURCE = ROOT / "src" / "motet"
BENCHMARKS = ROOT / "benchmarks"


def _modules(package: Path) -> list[str]:
    return sorted(
        path.relative_to(package.parent).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        for path in package.rglob("*.py")
    )


MODULES = _modules(SOURCE)
GROUND = {
    f"motet.{name}"
    for name in (
        "errors",
        "settings",
        "foreign_names",
        "text",
        "arrays",
        "nest",
        "masks",
        "seeds",
        "streams",
        "intervals",
        "schedule",
        "_lazy",
    )
}
CONTRACTS = {"motet.world", "motet.world.contract", "motet.policy", "motet.algorithm", "motet.pace"}
LOOP = {
    *("motet.training.actor", "motet.training.learner", "motet.training.run", "motet.system.supervisor"),
    *("motet.replay.replay", "motet.publication"),
}


# Models as worlds, which the world of one mind is made of and which the algorithm that needs a model asks.
MODELS = {"motet.world.coded"}


# What algorithms learn with. Configs, and how agents act, do without torch.
LEARNING = {
    f"motet.algorithms._{name}_learner" for name in ("attain", "dqn", "empower", "iqn", "loss", "ppo", "td3", "value")
}
LEARNING |= {
    f"motet.algorithms.{name}"
    for name in (
        "_empower_sampled_learner",
        "_loss_checks",
        "_module_checks",
        "_module_network",
        "_batch_tensors",
        "_convolution",
        "_device",
        "_flat",
        "_greedy_module",
        "_likelihoods",
        "_networks",
        "_normaliser",
        "_recurrent_network",
        "_transitions",
        "modules",
    )
}


def _tree(module: str) -> ast.Module:
    package = BENCHMARKS if module.startswith("benchmarks") else SOURCE
    path = package.parent / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text())


def _imports(module: str, at_top: bool = False) -> set[str]:
    """What a module imports by name; only where it is loaded, or anywhere."""
    tree = _tree(module)
    nodes = list(_top_level(tree)) if at_top else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & set(MODULES)) or {node.module}
    return found


def _top_level(tree: ast.Module):
    """Statements that run when the module is imported, and not only for a type checker."""
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo += node.orelse
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                todo += getattr(node, part, [])


def _ours(module: str) -> set[str]:
    return {name for name in _imports(module) if name == "motet" or name.startswith("motet.")}


def _exists(module: str) -> None:
    if module not in MODULES:
        pytest.skip(f"{module} does not exist")


def test_the_floors_hold():
    """``lint-imports``, as in ``make lint``: a room imports only rooms on lower floors, also by way of others."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=SOURCE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "0 broken" in done.stdout, done.stdout + done.stderr


def test_evaluation_and_reports_do_not_import_the_loop():
    code = (
        "import sys, motet.evaluation.evaluate, motet.evaluation.tournament, motet.reports.report; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith("motet.training")]


def test_errors_and_text_import_nothing_of_ours():
    assert _ours("motet.errors") == _ours("motet.text") == set()


def test_checks_know_errors_alone():
    assert _ours("motet.settings") == {"motet.errors"}


# What belongs to a contract but is kept apart for the reader's sake; bound by the same rule.
PARTS = {
    f"motet.world.{name}" for name in ("pettingzoo", "objects", "self_driven", "spaces", "model", "coded", "measured")
}
PARTS |= {"motet.world.goal_sampler"}
PARTS |= {"motet.system.raised", "motet.system.imports"}


@pytest.mark.parametrize("module", sorted({*CONTRACTS, *PARTS}))
def test_contracts_import_errors_and_contracts_alone(module):
    _exists(module)
    assert _ours(module) <= {*GROUND, *CONTRACTS, *PARTS, "motet.system.portable"}


def test_replay_and_publication_do_not_know_each_other_nor_the_loop():
    allowed = {"motet", "motet._native", "motet.system.memory", "motet.replay.spec", *GROUND, *CONTRACTS}
    for module in ("motet.replay.replay", "motet.replay.spec", "motet.publication"):
        assert _ours(module) <= allowed


def test_memory_knows_errors_alone():
    assert _ours("motet.system.memory") <= {"motet.arrays", "motet.errors", "motet.system.machine"}
    assert _ours("motet.system.machine") <= {"motet.errors"}


def test_actor_and_learner_do_not_know_each_other():
    for module, other in (
        ("motet.training.actor", "motet.training.learner"),
        ("motet.training.learner", "motet.training.actor"),
    ):
        _exists(module)
        assert other not in _ours(module)


def test_the_supervisor_does_not_know_what_a_learner_is():
    _exists("motet.system.supervisor")
    assert _ours("motet.system.supervisor").isdisjoint(
        {"motet.training.learner", "motet.training.actor", "motet.algorithm", "motet.replay"}
    )


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("motet.plan")])
def test_planning_never_imports_the_loop(module):
    assert _ours(module).isdisjoint(LOOP)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("motet.worlds")])
def test_worlds_import_contracts_alone(module):
    own = {name for name in _ours(module) if name.startswith("motet.worlds")}
    assert _ours(module) - own <= {"motet.system.imports", *MODELS, *GROUND, *CONTRACTS}


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("motet.algorithms")])
def test_algorithms_import_contracts_and_the_native_forward_alone(module):
    own = {name for name in _ours(module) if name.startswith("motet.algorithms")}
    by_value = {"motet.system.imports", "motet.system.pickling"}  # functions of users that a config holds
    assert _ours(module) - own <= {"motet", "motet._native", *by_value, *MODELS, *GROUND, *CONTRACTS}


@pytest.mark.parametrize("module", [*MODULES, *_modules(BENCHMARKS)])
def test_torch_is_loaded_by_what_learns_alone_and_nothing_imports_the_command(module):
    top = {name.partition(".")[0] for name in _imports(module, at_top=True)}
    if module not in LEARNING:
        assert "torch" not in top
    assert "ray" not in top
    if not module.startswith(("motet.cli", "motet.__main__", "benchmarks.__main__")):
        assert "motet.cli" not in _ours(module)


def test_importing_motet_is_light():
    """Counted in modules, not in seconds."""
    code = "import sys; before = set(sys.modules); import motet; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    heavy = {"torch", "ray", "gymnasium", "pettingzoo", "matplotlib", "tensorboard", "wandb", "rich", "tyro", "imageio"}
    assert "motet" in loaded
    assert loaded.isdisjoint(heavy), f"import motet also imports {sorted(loaded & heavy)}"


def test_replay_and_publication_need_numpy_alone():
    code = "import sys; import motet.replay, motet.publication; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint({"torch", "ray", "gymnasium", "pettingzoo"})
