"""A headless browser for pages, where one is installed."""

import functools
import html as markup
import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (1280, 390)
"""Widths of a wide and of a narrow screen, in pixels."""

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


RUNNER = """<!doctype html><body><script>
const found = [];
const shown = one => one.checkVisibility({visibilityProperty: true});
function overlaps(page) {
  const clashes = [];
  for (const axis of page.querySelectorAll(".x-ticks, .y-ticks")) {
    const labels = [...axis.children].filter(shown).map(one => [one.textContent, one.getBoundingClientRect()]);
    labels.forEach(([name, a], i) => labels.slice(i + 1).forEach(([other, b]) => {
      if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) {
        const title = axis.closest("figure").querySelector("strong").textContent;
        clashes.push(`${title}: ${name} and ${other}`);
      }
    }));
  }
  return clashes;
}
function look(page, width) {
  return new Promise(done => {
    const frame = document.createElement("iframe");
    frame.style = `border: 0; height: 900px; width: ${width}px`;
    frame.onload = () => setTimeout(() => {
      const inside = frame.contentDocument, root = inside.documentElement;
      if (PLAIN) for (const one of inside.querySelectorAll("details")) one.open = true;
      const wide = [...inside.querySelectorAll(PARTS)]
        .filter(one => shown(one) && one.getBoundingClientRect().right > width + 1)
        .map(one => `${one.tagName} ${one.textContent.slice(0, 60)}`);
      const boxes = PLAIN ? [...inside.querySelectorAll("*")]
        .filter(one => /auto|scroll/.test(frame.contentWindow.getComputedStyle(one).overflowX)
                && one.scrollWidth > one.clientWidth + 1)
        .map(one => `${one.tagName}.${one.className} ${one.textContent.slice(0, 60)}`) : [];
      const loaded = frame.contentWindow.performance.getEntriesByType("resource").map(one => one.name);
      found.push({page, width, wide, boxes, overlaps: overlaps(inside), scrolls: root.scrollWidth - root.clientWidth,
                  outside: loaded.filter(name => !name.startsWith(location.origin) && !name.startsWith("data:"))});
      frame.remove();
      done();
    }, 100);
    frame.src = page;
    document.body.append(frame);
  });
}
(async () => {
  for (const page of PAGES) for (const width of WIDTHS) await look(page, width);
  document.body.textContent = JSON.stringify(found);
})();
</script></body>"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def misfits(folder: Path, pages: list[str], scratch: Path, plain: bool = False) -> list[dict[str, Any]]:
    """What does not fit on the pages of a folder, wide and narrow: clipped parts, scroll bars, overlaps, requests.

    ``plain``: pages that motet makes. Nothing on them may scroll sideways, not even a part of the page, and folded
    parts are looked into as well.
    """
    parts = (
        "body :is(table, td, img, h1, h2, h3, p, li, dd, figure, span, a)"
        if plain
        else ("article :is(table, img, h1, h2, h3, h4, p, li)")
    )
    words = {"PAGES": pages, "WIDTHS": WIDTHS, "PARTS": parts, "PLAIN": plain}
    runner = RUNNER
    for name, value in words.items():
        runner = runner.replace(name, json.dumps(value))
    (folder / "runner.html").write_text(runner, encoding="utf-8")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/runner.html"
        shown = browser(address, scratch, budget_ms=500 * len(pages) * len(WIDTHS) + 2000)
        server.shutdown()
    results = json.loads(markup.unescape(re.search(r"<body>(.*)</body>", shown, re.S)[1]))  # type: ignore[index]
    assert len(results) == len(pages) * len(WIDTHS)
    names = ("wide", "boxes", "overlaps", "outside")
    return [one for one in results if one["scrolls"] > 0 or any(one[name] for name in names)]
