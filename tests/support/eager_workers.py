"""Workers of a plan that start immediately, even if they are not worthwhile, so that tests do not depend on timing."""

import time

from motet.plan import parallel as _workers


def make_eager(monkeypatch, part_s=None, workers=1):
    """The caller waits for so many workers before it continues. Returns a list of the parts that are sent, growing."""
    for name in ("START_S", "COLD_START_S", "GAIN", "ALONE_S"):
        monkeypatch.setattr(_workers, name, 0.0)
    if part_s is not None:
        monkeypatch.setattr(_workers, "PART_S", part_s)
    make, send, parts = _workers._WorkerPool.__post_init__, _workers._WorkerPool.send, []

    def patient(crew):
        make(crew)
        becomes(lambda: crew.idle() and crew.size() >= workers)

    def sent(crew, first, part):
        parts.append(first)
        send(crew, first, part)

    monkeypatch.setattr(_workers._WorkerPool, "__post_init__", patient)
    monkeypatch.setattr(_workers._WorkerPool, "send", sent)
    return parts


def becomes(true, timeout_s=150.0):
    """Wait until it is."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
