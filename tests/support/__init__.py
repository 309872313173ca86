"""What tests share: worlds, policies and models of other people's making, fakes, and where things lie."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
EXAMPLES = ROOT / "examples"
