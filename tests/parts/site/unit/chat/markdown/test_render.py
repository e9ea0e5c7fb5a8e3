"""Rendered replies cannot run, load or restyle anything, whatever a model says; ordinary Markdown looks right."""

import time
from html.parser import HTMLParser

import pytest
from pygments.token import STANDARD_TYPES

from cadenza.parts.site.chat.markdown.render import HtmlRenderer
from tests.parts.site.unit.hostile import HOSTILE

RENDERER = HtmlRenderer()
TAGS = {
    *("a", "blockquote", "br", "code", "div", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span"),
    *("strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    *("math", "mfrac", "mi", "mn", "mo", "mrow", "mspace", "msub", "msup", "msubsup", "mtable", "mtd", "mtr"),
}
CLASSES = {"code", "scroll", "language", "align-right", "align-center", *STANDARD_TYPES.values()}
OPENINGS = [
    *("[", "![", "[](", "*a ", "*_", "`", "> ", "- a\n", "|a|b|\n|-|-|\n", "<a ", "&", "~~a", "[a](<b", "\\", "</"),
    "```\n",
]
ATTRIBUTES = {("a", "href"), ("a", "rel"), ("ol", "start"), ("pre", "tabindex"), ("div", "tabindex")}


class Parsed(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")


def check_harmless(html: str) -> Parsed:
    parsed = Parsed(html)
    for tag, attributes in parsed.elements:
        assert tag in TAGS, tag
        for name, value in attributes.items():
            if name == "class":
                assert set((value or "").split()) <= CLASSES
            else:
                assert (tag, name) in ATTRIBUTES, (tag, name)
        if tag == "a" and "href" in attributes:
            assert (attributes["href"] or "").lower().startswith(("http://", "https://", "mailto:")), attributes
            assert attributes["rel"] == "noopener noreferrer nofollow"
    return parsed


@pytest.mark.parametrize("source", HOSTILE, ids=ascii)
def test_hostile_text_is_harmless(source: str) -> None:
    """Only allowed elements, attributes, classes and addresses are left, also inside lists, quotes and tables."""
    safe = source.encode("utf-8", "replace").decode()
    for form in ("{}", "> {}", "- {}", "**{}**", "| a |\n|---|\n| {} |", "[{}](http://a.example)", "# {}"):
        check_harmless(RENDERER.render(form.format(safe)))


def test_html_is_shown_as_text() -> None:
    """HTML in a reply is visible, not gone."""
    assert "<b>bold</b>" in check_harmless(RENDERER.render("so <b>bold</b>")).text


def test_pictures_become_links() -> None:
    """A picture is never loaded: it is a link with its description; inside a link it is text."""
    parsed = check_harmless(RENDERER.render("![a cat](https://a.example/cat.png) ![](https://a.example/2.png)"))
    assert [attributes["href"] for tag, attributes in parsed.elements if tag == "a"] == [
        "https://a.example/cat.png",
        "https://a.example/2.png",
    ]
    assert parsed.text.strip() == "a cat picture"
    inside = check_harmless(RENDERER.render("[![cat](https://a.example/cat.png)](https://b.example)"))
    assert [attributes["href"] for tag, attributes in inside.elements if tag == "a"] == ["https://b.example"]


def test_what_is_too_long_is_plain() -> None:
    """An address beyond 2,048 characters is no link, and code beyond 16 KiB has no colours."""
    for chars, is_link in ((2048, True), (2049, False)):
        address = "http://a.example/".ljust(chars, "x")
        assert ("<a " in RENDERER.render(f"[x]({address})")) is is_link
    assert '<span class="k">' not in RENDERER.render(f"```python\n{'def f(): pass' * 2_000}\n```")


def test_ordinary_markdown() -> None:
    """Emphasis, lists, headings below ours, tables that scroll, code with its language and colours."""
    html = RENDERER.render("# One\n\n###### Six\n\n3. *a*\n4. **b**\n\n~~c~~ `d`\n\n| x | y |\n|--:|:-:|\n| 1 | 2 |")
    for part in (
        "<h3>One</h3>",
        "<h6>Six</h6>",
        '<ol start="3">',
        "<em>a</em>",
        "<strong>b</strong>",
        "<s>c</s>",
        "<code>d</code>",
        '<div class="scroll" tabindex="0"><table>',
        '<td class="align-right">1</td>',
        '<td class="align-center">2</td>',
    ):
        assert part in html, part
    code = RENDERER.render("```python title=x\ndef f(): return 1\n```")
    assert '<span class="language">python</span>' in code
    assert '<span class="k">def</span>' in code
    assert Parsed(RENDERER.render("```no-such-language\n<x> & y\n```")).text.endswith("<x> & y\n\n")


def test_code_keeps_every_character() -> None:
    """Coloured code, copied, is the code that the model wrote, with its empty lines."""
    code = "\n\ndef f(x):\n\n\treturn '<&>\"'  # é ✓ 😀\n\n"
    parsed = Parsed(RENDERER.render(f"~~~python\n{code}~~~"))
    assert parsed.text.removeprefix("python").rstrip("\n") == code.rstrip("\n")


@pytest.mark.slow(reason="renders texts as long as they may be")
@pytest.mark.parametrize("part", OPENINGS)
def test_the_cost_is_linear(part: str) -> None:
    """Four times as much of the same hostile text takes about four times as long, and not sixteen times."""

    def measure_s(chars: int) -> float:
        source = part * (chars // len(part))
        begun_s = time.process_time()
        RENDERER.render(source)
        return time.process_time() - begun_s

    measure_s(500)
    limit_s = 10 * min(measure_s(4_000) for _ in range(3)) + 0.01
    assert any(measure_s(16_000) < limit_s for _ in range(3))


@pytest.mark.parametrize(
    ("formula", "elements", "text"),
    [
        (r"\(\frac{a}{b}\)", ["mfrac", "mi", "mi"], "ab"),
        (r"\[ \int_0^1 x^2 \, dx \]", ["msubsup", "msup", "mspace"], "∫01x2dx"),
        (r"$$\begin{aligned} a & b \\ c & d \end{aligned}$$", ["mtable", "mtr", "mtr"], "abcd"),
        (r"$\alpha_1 * \beta_2 * \gamma$", ["msub", "msub"], "α1*β2*γ"),
        (r"$x < y^2 & z$", ["msup"], "x<y2&z"),
    ],
)
def test_a_formula_is_mathml(formula: str, elements: list[str], text: str) -> None:
    """LaTeX becomes MathML: Markdown takes no backslash for an escape, and no sign for emphasis."""
    parsed = Parsed(RENDERER.render(f"So {formula} holds."))
    assert parsed.text.strip() == f"So {text} holds."
    names = [name for name, _ in parsed.elements]
    assert [name for name in names if name in elements] == elements
    [found] = [attributes for name, attributes in parsed.elements if name == "math"]
    assert found == {"display": "block" if formula.startswith((r"\[", "$$")) else "inline"}


@pytest.mark.parametrize("formula", [r"\(\frac{\)", r"$a_1_2$", r"\[ \begin{matrix} \]", r"$$\left( x^2$$"])
def test_a_formula_that_cannot_be_read_is_shown_as_it_is(formula: str) -> None:
    """With its signs and backslashes."""
    assert Parsed(RENDERER.render(f"So {formula} holds.")).text.strip() == f"So {formula} holds."


@pytest.mark.parametrize(
    "formula",
    [
        r"$\href{javascript:alert(1)}{x}$",
        r"$\color{red;background:url(http://a)}{x_1}$",
        r"$\text{</math><script>alert(1)</script>}$",
        r"$\style{position:fixed}{x}\class{badge}{y}\cssId{a}{z}$",
    ],
)
def test_a_formula_runs_and_styles_nothing(formula: str) -> None:
    """What LaTeX can say beyond mathematics is removed, like everything that is not allowed."""
    html = RENDERER.render(formula)
    assert {name for _, attributes in Parsed(html).elements for name in attributes} <= {"display"}
    assert "<script" not in html


def test_tasks_have_boxes() -> None:
    """In a list, and only at the start of an item, which then has no bullet."""
    html = RENDERER.render("- [ ] to do\n- [x] done [ ]\n- other\n1. [X] also\n\n[ ] no item")
    lines = Parsed(html).text.split("\n")
    assert [line for line in lines if line] == ["☐ to do", "☑ done [ ]", "other", "☑ also", "[ ] no item"]
    assert html.count("<li>") == 1
    assert html.count('<li class="task">') == 3


def test_a_price_is_no_formula() -> None:
    """Dollar signs of prices, and backslashes outside of formulas, mean what they mean in Markdown."""
    assert (
        RENDERER.render(r"From $5 to **$10** and \*not bold\*.")
        == "<p>From $5 to <strong>$10</strong> and *not bold*.</p>\n"
    )


def test_unclosed_formulas_are_not_quadratic() -> None:
    """A block of 16 KiB of openings without an end costs at most ten times as much as ordinary text of its size."""

    def cost_s(source: str) -> float:
        begun_s = time.process_time()
        RENDERER.render(source)
        return time.process_time() - begun_s

    ordinary_s = cost_s("*a* `b` [c](d) " * 1024)
    assert cost_s("\\(" * 8192) < 10 * ordinary_s + 0.5
