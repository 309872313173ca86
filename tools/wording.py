"""Retired identifiers and phrases must not come back: ``make lint`` runs this.

Identifiers are looked for in code, phrases in texts: comments, docstrings, messages and pages. A phrase is retired as a
whole; single common words are left to readers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

IDENTIFIERS = (
    *("_Book", "_Course", "_Crowd", "_Desk", "_Warden", "_Luggage", "_Misfit", "ActorDriver", "LearnerDriver"),
    *("go_on=", "say=", "watch=", "credit_achieved="),
)
PHRASES = (
    # The subject is missing, or is not the thing that acts.
    *(r"of everything random", r"who is further", r"whoever is (?:free|quicker)", r"who (?:comes|is) second"),
    # Old sayings for plain things.
    *(r"is said\b", r"said aloud", r"of its own accord", r"so many (?:steps|times|updates|seconds)", r"for so long"),
    *(r"after so long", r"goes on (?:exactly|where|from|with)", r"\banew\b", r"to mend it", r"what survives what"),
    *(r"learnt nonsense", r"learnt\b", r"successor (?:starts|takes|goes|of a learner|of an actor)", r"comes home"),
    *(r"gets? lost in silence", r"dropped in silence", r"by the book", r"what it is worth to sit", r"look again"),
    *(r"the best so far", r"all curves", r"rewards summed before", r"guard against small second moments"),
    *(
        r"share of random actions",
        r"without a beat\b",
        r"given [^ ]+, expected",
        r"for people\.",
        r"is no (?:human|robot)",
    ),
    # A thing is 'told', 'copied aside' or 'settled' where a plain verb says what happens to it.
    *(r"goes on bit for bit", r"(?:is|are) told the stage", r"counts? as settled", r"copied aside", r"cores for them"),
    *(r"what the model says", r"functions of their seeds", r"where (?:versions go|policies come from)", r"\ban own \w"),
)
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "CHANGELOG.md": ("go_on=", "say=", "watch=", "credit_achieved=", "ActorDriver", "LearnerDriver"),
    "tests/": (*IDENTIFIERS, *PHRASES),  # test names and stand-ins are left to readers
    "tools/wording.py": (*IDENTIFIERS, *PHRASES),
    "docs/decisions/": ("ActorDriver", "LearnerDriver"),
    "docs/guarantees.md": (r"learnt\b",),  # names of tests
}
TEXTS = (".py", ".pyi", ".md", ".cpp", ".hpp", ".toml", ".js", ".css")


def found_in(path: str, text: str) -> list[str]:
    """The retired words of one file, with their lines.

    >>> found_in("a.md", "one\\nIt is trained anew.")
    ['a.md:2: anew']
    """
    allowed = {word for prefix, words in EXCEPTIONS.items() if path.startswith(prefix) for word in words}
    code = [re.escape(word) for word in IDENTIFIERS if word not in allowed and not path.endswith(".md")]
    phrases = [word for word in PHRASES if word not in allowed]
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, flags in (*((word, 0) for word in code), *((word, re.I) for word in phrases)):
            if match := re.search(pattern, line, flags):
                found.append(f"{path}:{number}: {match.group()}")
    return found


def main() -> int:
    """Look through all files that git knows; 1 if a retired word was found."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = []
    for path in listed.splitlines():
        if path.endswith(TEXTS) and (ROOT / path).exists():
            found += found_in(path, (ROOT / path).read_text())
    sys.stdout.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
