"""The last module that the fork server imports: it lets the server end without a search for reference cycles.

With torch loaded that search takes half a second. Until it is over, the server holds the output of the command that
started it, and ``motet train | tee log`` does not return. Unlike other modules this one acts when it is imported,
because importing is all that a fork server can be told to do. Children are not affected: they end by ``os._exit``.
"""

import atexit
import gc

__all__: list[str] = []

atexit.register(gc.freeze)
