"""Play a tournament in the repeated prisoner's dilemma, interrupt it after a few games, and resume it.

python examples/tournament.py [ROUNDS]
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import motet
from motet.worlds import MatrixGame


class Grudger:
    """Cooperates until the other player has defected once."""

    def reset(self, seed):
        self.wronged = False

    def act(self, observation, mask=None):
        self.wronged |= bool(observation[3])  # the other player's last action, one-hot: cooperated, defected
        return int(self.wronged)


def interrupt_after(games: int):
    return lambda done, total: os.kill(os.getpid(), signal.SIGINT) if done == games else None


def main(rounds: int) -> None:
    path = Path(mkdtemp(prefix="motet-")) / "cup"
    world = partial(MatrixGame, game="prisoners_dilemma", turns=20)
    policies = [Grudger, "tit_for_tat", "random", "constant,kw.action=1,name=defector"]
    first = motet.tournament(world, policies, rounds=rounds, dir=path, on_progress=interrupt_after(5))
    print(f"interrupted after {len(first.games)} games")
    result = motet.tournament(world, policies, rounds=rounds, dir=path, jobs=2, on_message=print)
    for name, one in result.ratings().items():
        print(f"{name:12} {one.rating:5.0f}  95 % between {one.low:.0f} and {one.high:.0f}")
    for name, row in result.cross_table().items():
        won = ", ".join(f"{share:.0%} against {other}" for other, (share, _) in row.items())
        print(f"{name} won {won}")
    print(f"{len(result.games)} games, in {path}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
