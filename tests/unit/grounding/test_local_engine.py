"""The local engine: which passages it finds, and that it is silent about what the documents do not say."""

import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest

from cadenza.grounding.files.records import Section
from cadenza.grounding.index.local_index import StoredFile, index_exists, open_writer
from cadenza.grounding.search.engines.local import LocalBounds, LocalEngine, Topic, find_topics
from cadenza.grounding.search.finder import fitting
from cadenza.grounding.search.records import EngineFailed, Hit, Source
from tests.unit.grounding.indexed import HANDBOOK, NORDLYS, index, write
from tests.unit.grounding.natural_questions import (
    HELD_OUT_ANSWERED,
    HELD_OUT_UNANSWERED,
    NATURAL_ANSWERED,
    NATURAL_UNANSWERED,
)
from tests.unit.grounding.questions import ANSWERED, UNANSWERED, Answered

PATIENT = LocalBounds(time_s=60.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index" / "index.db"


@pytest.fixture
def engine(path: Path) -> LocalEngine:
    """An engine that is patient: these tests may run on a busy machine."""
    return LocalEngine(path, PATIENT)


def has_answer(hits: Sequence[Hit], asked: Answered) -> bool:
    return any(asked.answer in hit.text and asked.path in hit.url for hit in hits)


async def measure(engine: LocalEngine, answered: Sequence[Answered], unanswered: Sequence[str]) -> tuple[float, float]:
    """Recall: the answers that were found. Precision: the questions with hits that have the answer among them."""
    hits = [await engine.search(asked.question, 5) for asked in answered]
    right = sum(has_answer(found, asked) for found, asked in zip(hits, answered, strict=True))
    false = [bool(await engine.search(question, 5)) for question in unanswered]
    return right / len(answered), right / (sum(map(bool, hits)) + sum(false))


async def test_questions_in_the_words_of_people(engine: LocalEngine, path: Path) -> None:
    """Tasks, file names, extra words and two questions in one: 95%, and 80% of the held-out ones; nothing false."""
    await index(path, HANDBOOK)
    await index(path, NORDLYS)
    assert await measure(engine, NATURAL_ANSWERED, NATURAL_UNANSWERED) == (0.95, 1.0)
    assert await measure(engine, HELD_OUT_ANSWERED, HELD_OUT_UNANSWERED) == (0.8, 1.0)
    assert await measure(engine, ANSWERED, UNANSWERED) == (0.95, 1.0)


async def test_a_named_file_is_meant(engine: LocalEngine, path: Path, tmp_path: Path) -> None:
    """Only its passages are found, whatever its name. Several may be named, and an unknown one changes nothing."""
    texts = {"report": "Zebras sleep.", "sick-leave": "Report to a doctor.", "leave": "Ask first.", "b c": "Lions."}
    await index(path, write(tmp_path / "docs", **texts))

    async def titles(query: str) -> list[str]:
        return sorted(hit.title for hit in await engine.search(query, 5))

    assert await titles("What does report.md say?") == ["docs/report.md"]
    assert await titles("Summarise LEAVE.MD for a doctor") == ["docs/leave.md"]
    assert await titles("Compare leave.md and report.md") == ["docs/leave.md", "docs/report.md"]
    assert await titles("Translate b c.md") == ["docs/b c.md"]
    assert await titles("Does zebras.pdf say something about zebras?") == ["docs/report.md"]


async def test_each_part_of_a_question_is_answered(engine: LocalEngine, path: Path) -> None:
    """Two questions in one message, with answers in two files, find both."""
    await index(path, HANDBOOK)
    hits = await engine.search("Where is the defibrillator by the lift, and how long are laptop backups kept?", 5)
    assert {hit.title for hit in hits} == {"handbook/office.txt", "handbook/it/computers.md"}


async def test_a_hit_has_the_whole_passage_and_where_it_is_from(engine: LocalEngine, path: Path) -> None:
    """Title and address name the folder and the path of the file, and the text is the passage as it stands there."""
    await index(path, HANDBOOK)
    [hit, *_] = await engine.search("Where should I keep my passwords?", 5)
    assert (hit.title, hit.url, hit.snippet) == (
        "handbook/it/computers.md",
        "local:handbook/it/computers.md",
        "",
    )
    assert hit.text.startswith("# Computers, passwords and access\n")
    assert hit.text in (HANDBOOK / "it" / "computers.md").read_text()


@pytest.mark.parametrize("url", [None, "https://docs.example/x/"])
@pytest.mark.parametrize(
    ("label", "fragment"),
    [("page 3", "#page=3"), ("sheet Q1 & Q2", "#sheet=Q1%20%26%20Q2"), ("appendix", "#appendix"), ("", "")],
)
async def test_an_address_names_the_place(
    engine: LocalEngine, path: Path, label: str, fragment: str, url: str | None
) -> None:
    """A published folder gives links; a page or sheet is the fragment of the address, and part of the title."""
    with open_writer(path) as writer:
        folder = writer.put_folder("/srv", url, 0)
        writer.put_file(folder, StoredFile("x#1/a b.pdf", 1, 1, b""), [Section(label, "Zebras run")])
    title = f"srv/x#1/a b.pdf, {label}" if label else "srv/x#1/a b.pdf"
    assert await engine.search("zebras?", 5) == [
        Hit(f"{url or 'local:srv/'}x%231/a%20b.pdf{fragment}", title, text="Zebras run")
    ]


async def test_files_of_one_name_are_two_sources(engine: LocalEngine, path: Path, tmp_path: Path) -> None:
    """Two folders with a file of the same name, and even of the same name themselves, have different addresses."""
    for parent in ("one", "two"):
        (tmp_path / parent).mkdir()
        await index(path, write(tmp_path / parent / "docs", travel=f"Zebras travel by train number {parent}."))
    hits = await engine.search("How do zebras travel?", 5)
    assert {hit.url for hit in hits} == {"local:docs/travel.md", "local:docs-2/travel.md"}
    assert {hit.title for hit in hits} == {"docs/travel.md", "docs-2/travel.md"}
    sources = fitting([Source(hit.url, hit.title, hit.text) for hit in hits], 1000)
    assert len(sources) == 2
    assert all("[…]" not in source.text for source in sources)


async def test_a_long_path_is_cut_at_its_beginning(engine: LocalEngine, path: Path) -> None:
    """The title keeps the name of the file; the address is whole."""
    name = "/".join(["a very long name of a folder"] * 8) + "/zebras.md"
    with open_writer(path) as writer:
        writer.put_file(writer.put_folder("/srv", None, 0), StoredFile(name, 1, 1, b""), [Section("", "Zebras run")])
    [hit] = await engine.search("zebras", 5)
    assert len(hit.title) == 120
    assert hit.title.startswith("…")
    assert hit.title.endswith("/zebras.md")
    assert hit.url == f"local:srv/{quote(name)}"


async def test_two_passages_of_a_file_come_before_a_third(engine: LocalEngine, path: Path, tmp_path: Path) -> None:
    """A file has at most two of the hits, unless the others are too few; `count` is the limit."""
    many = "\n\n".join(f"Zebras have {number} stripes. {'Grass ' * 190}" for number in range(5))
    await index(path, write(tmp_path / "docs", many=many, other="Zebras have stripes and hooves."))
    names = [[hit.title for hit in await engine.search("zebra stripes", count)] for count in (1, 3, 5, 10)]
    assert [len(found) for found in names] == [1, 3, 5, 6]
    assert sorted(names[1]) == ["docs/many.md", "docs/many.md", "docs/other.md"]
    assert names[3].count("docs/many.md") == 5


async def test_a_change_is_seen_by_the_next_search(engine: LocalEngine, path: Path, tmp_path: Path) -> None:
    """New, changed and deleted files, a removed index and one that comes later: each shows at once."""
    folder = tmp_path / "docs"
    assert (index_exists(path), await engine.search("zebras", 5)) == (False, [])
    await index(path, write(folder, a="Zebras have stripes."))
    assert [hit.title for hit in await engine.search("zebras", 5)] == ["docs/a.md"]
    await index(path, write(folder, b="Zebras eat grass."))
    assert {hit.title for hit in await engine.search("zebras", 5)} == {"docs/a.md", "docs/b.md"}
    await index(path, write(folder, a="Giraffes have spots."))
    assert {hit.title for hit in await engine.search("zebras", 5)} == {"docs/b.md"}
    (folder / "b.md").unlink()
    await index(path, folder)
    assert (index_exists(path), await engine.search("zebras", 5)) == (True, [])
    for file in path.parent.glob("index.db*"):
        file.rename(tmp_path / file.name)
    assert (index_exists(path), await engine.search("giraffes", 5)) == (False, [])


async def test_operators_are_words(engine: LocalEngine, path: Path, tmp_path: Path) -> None:
    """What FTS5 would read as an operator finds passages, and is no error."""
    await index(path, write(tmp_path / "docs", a="A zebra has stripes, and x or near text."))
    for query in (
        'zebra" OR "x',
        "zebra AND NOT stripes",
        "NEAR(zebra stripes)",
        "text:zebra",
        "zebra*",
        "^zebra + stripes",
        "(zebra",
    ):
        assert len(await engine.search(query, 5)) == 1, query


async def test_a_question_about_nothing_has_no_hits(engine: LocalEngine, path: Path) -> None:
    """Queries without a word that tells what they are about find nothing, and are no error."""
    await index(path, HANDBOOK)
    for query in ("", "?", "the", "who are you", "\0", "\ud800", "🦓", '"' * 5000, "Good morning!"):
        assert await engine.search(query, 5) == [], query


async def test_chinese_japanese_and_korean_are_found(engine: LocalEngine, path: Path, tmp_path: Path) -> None:
    """Text without spaces between words is found, and quoted as it was."""
    texts = {
        "zh": "退款将在六个工作日内支付。",
        "ja": "返品は四十五日以内に受け付けます。",
        "ko": "환불은 육일 이내에 지급됩니다.",
    }
    await index(path, write(tmp_path / "docs", **texts))
    for name, query in {"zh": "退款支付", "ja": "返品受付", "ko": "환불 지급"}.items():
        [hit] = await engine.search(query, 5)
        assert (hit.title, hit.text) == (f"docs/{name}.md", texts[name])


async def test_words_are_compared_by_stem_and_without_accents(engine: LocalEngine, path: Path, tmp_path: Path) -> None:
    """Case, accents, composed or not, and endings do not matter."""
    await index(path, write(tmp_path / "docs", a="The CAFÉ serves re\u0301sume\u0301s."))
    for query in ("cafe", "Café", "cafe\u0301 serving", "r\u00e9sum\u00e9"):
        assert len(await engine.search(query, 5)) == 1, query


async def test_a_damaged_index_fails_in_one_word(path: Path) -> None:
    """A file that is no index is a failure of the engine, whose reason holds no content."""
    write(path.parent, no_index="no index at all " * 1000)
    engine = LocalEngine(path.parent / "no_index.md", PATIENT)
    with pytest.raises(EngineFailed) as failed:
        await engine.search("zebras", 5)
    assert failed.value.reason == "unusable"
    assert failed.value.__suppress_context__


async def test_a_search_that_takes_too_long_fails(path: Path, tmp_path: Path) -> None:
    """Beyond its time a search is a failure of the engine."""
    text = "\n\n".join(f"Zebras have stripes {number}. {'Grass ' * 190}" for number in range(300))
    await index(path, write(tmp_path / "docs", a=text))
    with pytest.raises(EngineFailed) as failed:
        await LocalEngine(path, LocalBounds(time_s=0.0)).search("zebra stripes grass", 5)
    assert failed.value.reason == "timeout"


@pytest.mark.parametrize(
    ("query", "topics"),
    [
        ("Good morning! Who's my boss? I don't know.", [Topic(("boss",))]),
        ("Summarise the holiday policy in German", [Topic(("holiday",), ("policy",))]),
        ("What is the phone number of Per Dahl?", [Topic(("dahl",), ("phone", "number"))]),
        ("Where is the key?", [Topic(("key",))]),
        ("Explain it in simple words", [Topic(("words",))]),
        (
            "Who leads customs in Oslo, and when does the terminal open?",
            [
                Topic(("leads", "customs", "oslo", "terminal", "open")),
                Topic(("leads", "customs", "oslo")),
                Topic(("terminal", "open")),
            ],
        ),
        ("Dogs? Cats? Birds? Fish?", [Topic(("dogs", "cats", "birds", "fish"))]),
        (
            "What does Report_2026.PDF say?",
            [Topic(("report", "2026"), files=("report_2026.pdf",)), Topic(("2026",), ("report",))],
        ),
        ("Read how-to.md", [Topic(("how", "to", "read"), files=("how-to.md",)), Topic(("read",))]),
    ],
)
def test_what_a_question_is_about(query: str, topics: list[Topic]) -> None:
    """Question words, greetings and tasks are left out, soft words stand apart, and a question may have parts."""
    assert list(find_topics(query)) == topics


def test_a_long_word_is_read_in_time() -> None:
    """A question without blanks takes no longer than others."""
    before_s = time.process_time()
    for query in ("a" * 4000, "a." * 2000, "." * 4000, "a-" * 2000):
        list(find_topics(query))
    assert time.process_time() - before_s < 1
