"""The links between the pages lead somewhere."""

import re
from pathlib import Path

from tests.docs.markdown import PAGES, ROOT

OTHERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
PICTURE_BYTES_MAX = 60_000
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page, as code hosts make them from its headings."""
    headings = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target))


def test_links_lead_somewhere() -> None:
    """Every relative link of a page names a file that exists and, with an anchor, one of its headings."""
    pages = [*PAGES, *OTHERS, *DECISIONS]
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [(page.name, link) for page, link in links if not leads_somewhere(page, link)] == []


def test_every_picture_exists_and_is_small() -> None:
    """Every picture of a page is a file, and one of docs/guides takes at most 60 kB."""
    pictures = [page.parent / link for page in PAGES for link in PICTURE.findall(page.read_text())]
    assert [picture for picture in pictures if not picture.is_file()] == []
    assert [
        one.name for one in pictures if one.parent.name == "guides" and one.stat().st_size > PICTURE_BYTES_MAX
    ] == []


def test_every_page_is_linked() -> None:
    """A reader who follows links from the README reaches every page of docs/."""
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        found = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if "://" not in link]
        waiting += [(page.parent / link).resolve() for link in found if link]
    assert set(PAGES) - seen == set()
