"""``python -m benchmarks``: the same as ``motet bench``, for any kind of install of motet."""

import sys

from motet.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["bench", *sys.argv[1:]]))
