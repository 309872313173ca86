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


@pytest.mark.parametrize("page", sorted((DOCS / "decisions").glob("[0-9]*.md")), ids=lambda page: page.name[:4])
def test_every_decision_has_its_heading_its_date_and_its_line_in_the_index(page):
    number = page.name[:4]
    found = re.match(rf"# {number} (.+)\n\nDate: (\d{{4}}-\d\d-\d\d)\n\n\*\*[^*]+\.\*\*\n\n", page.read_text())
    assert found, "expected '# NUMBER Title', 'Date: YEAR-MONTH-DAY' and the decision in bold"
    title, date = found.groups()
    line = f"| {number} | [{title}]({page.name}) | {date} | "
    assert (DOCS / "decisions" / "README.md").read_text().count(line) == 1
