"""Child processes: how they end."""

import threading
import time

import pytest

from motet.system.child import Child


def leaves_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(1e6,)).start()


def raises_beside_a_thread() -> None:
    leaves_a_thread()
    raise ValueError("no more")


@pytest.mark.parametrize(("target", "code"), [(leaves_a_thread, 0), (raises_beside_a_thread, 1)])
def test_threads_that_user_code_leaves_do_not_keep_a_child_alive(target, code):
    """Python waits for them at the end: a run of a second took a minute, until the child was killed."""
    child = Child("worker", target)
    try:
        assert child.join(20.0)
        assert child.exit == code
        assert ("no more" in child.traceback()) == (code == 1)
    finally:
        child.kill()
        child.close()
