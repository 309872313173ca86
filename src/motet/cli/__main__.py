"""``python -m motet.cli``."""

from motet.cli.command import main

if __name__ == "__main__":
    raise SystemExit(main())
