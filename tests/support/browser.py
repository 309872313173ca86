"""A headless browser for pages, where one is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser(address: str, folder: Path, budget_ms: int = 3000) -> str:
    """What a page at an address has become when its scripts have run."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    flags = [
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder / 'browser'}"),
    ]
    done = subprocess.run(
        [found, *flags, "--window-size=1200,900", f"--virtual-time-budget={budget_ms}", "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def dom(html: str, folder: Path, script: str = "") -> str:
    """What a page has become when its own script has run; then, if given, another one, which may do what users do."""
    if script:
        # The page forbids any script but its own; the tester's is let in by taking that rule out of a copy.
        start = html.index('<meta http-equiv="Content-Security-Policy"')
        html = html[:start] + html[html.index(">", start) + 1 :]
        html = html.replace("</body>", f"<script>{script}</script></body>")
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    return browser(path.as_uri(), folder)
