"""The site that ``make docs`` builds: every page is there, fits narrow screens, and loads nothing from elsewhere."""

import importlib
import re
import subprocess
import sys

import pytest
from support import ROOT
from support.browser import misfits

import motet


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; links and anchors that lead nowhere fail the build."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def pages(site):
    return sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))


def test_nothing_is_loaded_from_elsewhere(site):
    loads = re.compile(r"""<(?:script|img|iframe|source)[^>]+src=["']?(https?:)?//|<link[^>]+href=["']?(https?:)?//""")
    for page in pages(site):
        text = re.sub(r'<link rel="?canonical[^>]*>', "", (site / page).read_text())
        assert not loads.search(text), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text()), sheet.name


def test_everything_public_is_in_the_reference(site):
    shown = "".join(page.read_text() for page in (site / "reference").rglob("*.html"))
    rooms = ["motet", *(f"motet.{name}" for name in ("algorithms", "plan", "replay", "testing", "world", "worlds"))]
    for room in rooms:
        for name in importlib.import_module(room).__all__:
            if not name.startswith("__"):
                path = f"motet.{name}" if name in motet.__all__ else f"{room}.{name}"
                assert path in shown, f"{path} is not in docs/reference"


def test_every_setting_is_in_the_reference(site):
    page = (site / "reference" / "training" / "index.html").read_text()
    for name in motet.Settings.__dataclass_fields__:
        assert f'id="motet.training.settings.Settings.{name}"' in page


def test_examples_of_docstrings_are_code(site):
    for page in (site / "reference").rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(), flags=re.S)
        assert "&gt;&gt;&gt;" not in text and ":class:`" not in text, page


@pytest.mark.slow
def test_every_page_fits_wide_and_narrow_screens(site, tmp_path):
    assert misfits(site, [page for page in pages(site) if page != "404.html"], tmp_path) == []
