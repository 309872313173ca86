"""What the guide says about itself and about motet."""

import re

import pytest
from support import ROOT

from motet.worlds.catalogue import WORLDS

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", sorted(page.name for page in DOCS.glob("*.md") if page.name != "index.md"))
def test_the_first_page_links_every_other(page):
    assert re.search(rf"^- \[.+\]\({re.escape(page)}\): .+$", (DOCS / "index.md").read_text(), re.M)


@pytest.mark.parametrize("path", WORLDS.values(), ids=list(WORLDS))
def test_the_table_of_worlds_is_whole(path):
    assert f"| `{path.partition(':')[2]}` |" in (DOCS / "worlds.md").read_text()
