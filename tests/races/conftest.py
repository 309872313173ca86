"""Fixture of the race tests: no process is left running, whatever happens."""

from collections.abc import Iterator

import pytest
from support import race_roles


@pytest.fixture(autouse=True)
def nobody_stays(no_leaks: None) -> Iterator[None]:
    """Ends before the check for leaks begins."""
    yield
    race_roles.dismiss_all()
