"""``python -m motet``: the command ``motet``."""

from motet.cli.command import main

if __name__ == "__main__":
    raise SystemExit(main())
