"""``python -m benchmarks``: the same as ``motet bench``, wherever motet is installed."""

import sys

from motet.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["bench", *sys.argv[1:]]))
