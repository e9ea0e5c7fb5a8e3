"""HTML files: what a person sees of a saved page."""

import pytest

from cadenza.parts.grounding.files.formats.read import read_document

GRAIN = "<html><head><title>t</title></head><body><h1>Prices of grain</h1><p>Oats cost 3.20.</p></body></html>"


def read(page: str) -> str:
    [section] = read_document("page.html", "", page.encode())
    return section.text


def test_html_file() -> None:
    """An HTML file shows its title and all that a browser would, without scripts, as Markdown."""
    page = f"{GRAIN}<script>alert(1)</script><ul><li>a &amp; b<li>c</ul><table><tr><th>x<th>y<tr><td>1<td>2</table>"
    assert read(page) == (
        "Title: t\n\n# Prices of grain\n\nOats cost 3.20.\n\n- a & b\n- c\n\n| x | y |\n| --- | --- |\n| 1 | 2 |"
    )


def test_a_title_that_is_also_a_heading() -> None:
    """A title that stands as a heading on the page is not repeated."""
    assert read("<title>Oats &amp; milk</title><h2>Oats &amp; milk</h2><p>text") == "## Oats & milk\n\ntext"


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        (
            "<a href='https://example.org/?a=1&amp;b=2'>the <b>prices</b></a>",
            "[the prices](https://example.org/?a=1&b=2)",
        ),
        ('<a class=x href="HTTP://example.org/a b">a<br>b</a>', "[a b](HTTP://example.org/a%20b)"),
        ("<a href=mailto:zoe@example.org>Zoë</a>", "[Zoë](mailto:zoe@example.org)"),
        ("<a href=mailto:zoe@example.org>zoe@example.org</a>", "zoe@example.org"),
        ("<a href='https://example.org/'>example.org</a>", "example.org"),
        ("<a href='/prices'>here</a>", "here"),
        ("<a href='javascript:steal()'>here</a>", "here"),
        ("<a href='data:text/html,x'>here</a>", "here"),
        (f"<a href='https://example.org/{'x' * 300}'>here</a>", "here"),
        ("<a href='https://example.org/a'><img src=a.png></a>", ""),
        ("<a href='https://a.org'>a <a href='https://b.org'>b</a></a>", "[a b](https://a.org)"),
    ],
)
def test_links(link: str, shown: str) -> None:
    """A link has its target if it leads to the web or to an address, is not too long, and does not say it already."""
    assert read(f"<p>See {link}.</p>") == " ".join(f"See {shown}.".split())


def test_a_link_around_blocks() -> None:
    """A link around a heading and a paragraph leaves them as they are."""
    assert read("<a href='https://example.org'><h2>Oats</h2><p>3.20</p></a>") == "## Oats\n\n3.20"


@pytest.mark.parametrize(
    "hidden",
    [
        "<div hidden>secret</div>",
        "<div style='color: red; DISPLAY : none'><p>secret</p></div>",
        "<p style='visibility:hidden'>secret</p>",
        "<span style='display:none'>secret</span>",
        "<span hidden>a <span>secret</span> secret</span>",
        "<b hidden>a <i>secret</i> secret</b>",
        "<pre>code<span hidden>secret</span></pre>",
        "<table><tr><td>1<td>2<tr hidden><td>secret<td>secret</table>",
        "<table><tr><td>1<td>2<td hidden>secret</table>",
        "<template>secret</template><noscript>secret</noscript><style>secret</style>",
    ],
)
def test_hidden_text(hidden: str) -> None:
    """What the page hides is left out, and what follows it is not."""
    text = read(f"<body><p>before</p>{hidden}<p>after</p>")
    assert "secret" not in text
    assert text.startswith("before\n\n")
    assert text.endswith("\n\nafter")


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("<body style='visibility: hidden'><p>text</p></body>", "text"),
        ("<div style='display:none'><p>text</p></div>", "text"),
        ("<p class='hidden-xs' data-note='display:none'>text</p>", "text"),
        ("<p>a <span hidden>b</p><p>c <span>d</span> e</p>", "a\n\nc d e"),
    ],
)
def test_text_that_only_seems_hidden(page: str, shown: str) -> None:
    """A page that scripts would show is read, and so is what follows a hidden element without an end."""
    assert read(page) == shown


def test_captions_and_wide_cells() -> None:
    """A table has its caption before it, and a cell that spans columns keeps the others in their places."""
    page = "<table><caption>Sales</caption><tr><th colspan=2>Town<th>Tons<tr><td>Ulm<td>Süd<td>7</table>"
    assert read(page) == "Sales\n\n| Town |  | Tons |\n| --- | --- | --- |\n| Ulm | Süd | 7 |"


def test_a_table_of_links() -> None:
    """The targets of links do not make a table one for the layout."""
    link = f"<a href='https://example.org/{'x' * 250}'>a</a> "
    assert read(f"<table><tr><td>1<td>{link * 3}</table>").startswith("| 1 | [a](https://example.org/xxx")
