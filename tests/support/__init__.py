"""Code that tests share: worlds, policies and models in the style of users, fakes, and paths."""

import os
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
EXAMPLES = ROOT / "examples"


def without_torch(path: Sequence[object] = (TESTS,), **more: str) -> dict[str, str]:
    """The environment of a program that needs no torch.

    Each fork server would import it, for two seconds, and a program may start several.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS / "support" / "no_torch", *path))), **more}
