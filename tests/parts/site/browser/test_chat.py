"""The chat page in a real browser, with a scripted upstream: what a person does, by mouse, keyboard and on a phone."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Dialog, expect

from tests.loopback import ROLE, STOP, Good, LoopbackUpstream, Pause, Sse, Status, Whole, said, usage_chunk, usage_of
from tests.parts.site.browser.chat_page import (
    ask,
    choose,
    expect_replies,
    export,
    listed,
    open_chat,
    reload_chat,
    rename,
    replies,
    whole,
)
from tests.parts.site.browser.conftest import OpenPage, serious_findings, shoot, stop_clock
from tests.parts.site.browser.looks import PHONE, each_scheme
from tests.parts.site.unit.hostile import HOSTILE
from tests.parts.site.web.operators import balance_nano
from tests.service import CREDIT_NANO, Service

MARKDOWN = """## Leaves

Plants use **light** to make sugar:

| Part | Role |
|---|--:|
| Chlorophyll | takes in light |

```python
def grow(light):
    return light * 2  # sugar
```

1. Water
2. Light
"""
LONG_USAGE = usage_of(1000, 7)
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
pytestmark = pytest.mark.slow(reason="a browser chats")


def test_a_reply_is_streamed_rendered_and_kept(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """A wait counts its seconds; blocks appear once complete, then cost and tokens; all is kept and can be found."""
    wait, pause = Pause(), Pause()
    half = len(MARKDOWN) // 2
    upstream.script(Sse([ROLE, wait, said(MARKDOWN[:half]), pause, said(MARKDOWN[half:]), STOP, usage_chunk()]))
    page = open_page()
    open_chat(page, email)
    stop_clock(page)
    ask(page, "How do plants grow?")
    expect(replies(page).locator(".thinking")).to_have_text("")
    page.clock.fast_forward(25_000)
    expect(replies(page).locator(".thinking")).to_have_text("Waiting for the first words … 25 s")
    assert page.get_by_role("log").get_attribute("aria-live") == "off"
    shoot(page, "chat-waiting")
    page.clock.resume()
    wait.release()
    expect(replies(page).get_by_role("heading", name="Leaves")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(replies(page).get_by_text("Waiting")).to_have_count(0)
    pause.release()
    expect(replies(page).get_by_text("11 in, 7 out")).to_be_visible()
    expect(page.locator("#status")).to_have_text(re.compile(r"^Leaves\s+Plants use light to .*python def", re.DOTALL))
    for _ in range(2):
        expect(replies(page).locator("strong")).to_have_text("light")
        expect(replies(page).get_by_role("table")).to_contain_text("Chlorophyll")
        expect(replies(page).locator("pre .k").first).to_have_text("def")
        expect(replies(page)).to_contain_text("forte · 11 in, 7 out · $0.0000")
        expect(page.get_by_role("heading", level=1)).to_have_text("How do plants grow?")
        page.reload()
        page.wait_for_selector("#chat[data-ready]")
    shoot(page, "chat")
    assert serious_findings(page) == []
    page.get_by_label("Search conversations").fill("chlorophyll")
    expect(page.get_by_role("button", name="How do plants grow?")).to_be_visible()
    page.get_by_label("Search conversations").fill("animals")
    expect(page.get_by_text("Nothing found.")).to_be_visible()


def test_stop_edit_and_regenerate(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """A stopped reply is kept and charged; edits and new replies are branches; what is deleted amid one stays so."""
    upstream.script(Sse([ROLE, said("A *long* story"), Pause()]), whole("Second story."), whole("Third story."))
    page = open_page()
    open_chat(page, email)
    ask(page, "Tell me a story.")
    expect(replies(page)).to_contain_text("A *long* story")
    page.keyboard.press("Escape")
    upstream.wait_for_disconnect()
    expect(replies(page).locator("em")).to_have_text("long")
    expect(replies(page)).to_contain_text(re.compile(r"Stopped by you · forte · \d+ in, \d+ out · \$0\.0000"))
    page.get_by_role("button", name="Regenerate").click()
    expect(replies(page)).to_contain_text("Second story.")
    expect(replies(page)).to_contain_text("2 of 2")
    page.get_by_role("button", name="Earlier version").click()
    expect(replies(page)).to_contain_text("A long story")
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_text("You are editing an earlier message")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_have_value("Tell me a story.")
    ask(page, "Tell me a tale.")
    expect(replies(page)).to_contain_text("Third story.")
    sent = upstream.requests[-1].json["messages"]
    assert [message["content"] for message in sent if message["role"] != "system"] == ["Tell me a tale."]
    page.get_by_role("article", name="You").get_by_role("button", name="Earlier version").click()
    expect(page.get_by_role("article", name="You")).to_contain_text("Tell me a story.")
    upstream.script(Sse([ROLE, said("Another"), Pause()]))
    ask(page, "And another one.")
    expect(replies(page).last).to_contain_text("Another")
    choose(page, "Tell me a story.", "Delete")
    with page.expect_response(lambda response: response.url.endswith("/cost") and response.ok):
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("What would you like to know?")).to_be_visible()
    reload_chat(page)
    expect(listed(page, "Tell me a story.")).to_have_count(0)


def test_a_reply_goes_on_in_the_background(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """Another conversation can be opened and written in meanwhile; the reply is shown when the reader comes back."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("First\n\nhalf"), pause, said(" and rest."), STOP, usage_chunk()]), whole("Short."))
    page = open_page()
    open_chat(page, email)
    ask(page, "A long question")
    expect(replies(page)).to_contain_text("half")
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_text("What would you like to know?")).to_be_visible()
    ask(page, "Another one")
    expect(replies(page)).to_contain_text("11 in, 7 out")
    for _ in range(2):
        listed(page, "A long question").get_by_role("button", name="A long question").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("A long question")
        expect(replies(page).locator("p:not(.row)")).to_have_text(["First", "half"])
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
    pause.release()
    expect(replies(page)).to_contain_text("half and rest.")
    expect(replies(page)).to_contain_text("11 in, 7 out")
    reload_chat(page)
    expect(replies(page)).to_contain_text("half and rest.")


def test_what_ends_early_is_kept_and_its_cost_shown(
    open_page: OpenPage, upstream: LoopbackUpstream, service: Service, email: str
) -> None:
    """A reply that is stopped or left, even before its first word, and a title that a reload interrupted."""
    waits = [Pause() for _ in range(3)]
    early = (Sse([wait]) for wait in waits[:2])
    half = Sse([ROLE, said("A *long* story"), Pause()])
    upstream.script(*early, half, whole("The end."), Whole(["A title"], LONG_USAGE, waits[2]))
    page = open_page()
    open_chat(page, email)
    ask(page, "Tell me a story.")
    waits[0].wait_until_reached()
    page.keyboard.press("Escape")
    expect(replies(page)).to_contain_text(re.compile(r"Stopped by you · forte · \d+ in, 0 out · \$0\.0000"))
    ask(page, "Another one.")
    waits[1].wait_until_reached()
    reload_chat(page)
    left = r"Ended because you left the page · forte · \d+ in, {} out · \$0\.0000"
    expect(replies(page).last).to_contain_text(re.compile(left.format(0)))
    ask(page, "And one more.")
    expect(replies(page).last).to_contain_text("A *long* story")
    reload_chat(page)
    expect(replies(page).last.locator("em")).to_have_text("long")
    expect(replies(page).last).to_contain_text(re.compile(left.format(r"\d+")))
    page.evaluate("localStorage.clear()")
    ask(page, "Go on.")
    waits[2].wait_until_reached()
    spent = page.locator("#total").text_content()
    reload_chat(page)
    expect(page.locator("#total")).not_to_have_text(spent or "")
    expect(page.locator("#total")).to_have_text(so_far(service, email))
    roles = [message["role"] for message in upstream.requests[3].json["messages"] if message["role"] != "system"]
    assert roles == ["user", "user", "user", "assistant", "user"]


def test_money_follows_each_reply(open_page: OpenPage, upstream: LoopbackUpstream, service: Service) -> None:
    """The header, the notice of low credit and the price so far, without a reload. A new account is not low."""
    page = open_page()
    open_chat(page, service.create_account(900_000_000))
    expect(page.get_by_text("$0.90")).to_be_visible()
    expect(page.get_by_text("Your credit is low")).to_have_count(0)
    dear = usage_chunk({"prompt_tokens": 11, "completion_tokens": 20_000})
    upstream.always(Sse([ROLE, said("Yes."), STOP, dear]))
    for left, spent in (("$0.83", "$0.069"), ("$0.76", "$0.138")):
        ask(page, "Is it dear?")
        expect(page.locator("#balance")).to_contain_text(left)
        expect(page.get_by_text(f"Your credit is low: {left}")).to_be_visible()
        expect(page.locator("#total")).to_contain_text(spent)
    shoot(page, "chat-low-credit")


def test_a_sign_out_deletes_conversations_by_choice(
    open_page: OpenPage, upstream: LoopbackUpstream, email: str
) -> None:
    """They stay without the choice; with it a sign-out on any page deletes them and drafts, and the choice stays."""
    page = open_page()
    sign_out = page.get_by_role("button", name="Sign out", exact=True)
    upstream.always(whole("Yes."))
    open_chat(page, email)
    ask(page, "Are you there?")
    expect_replies(page, 1)
    sign_out.click()
    open_chat(page, email)
    listed(page, "Are you there?").get_by_role("button").first.click()
    page.get_by_label("Message", exact=True).fill("A draft.")
    page.get_by_text("Kept in this browser only").click()
    page.get_by_label("Delete at sign-out").check()
    page.goto("/keys")
    sign_out.click()
    page.wait_for_url("**/sign-in?note=signed-out")
    assert page.evaluate("Object.keys(localStorage).map((key) => key.split(':')[1])") == ["forgets"]
    open_chat(page, email)
    expect(page.locator("#conversations").get_by_role("listitem")).to_have_count(0)
    page.get_by_text("Kept in this browser only").click()
    expect(page.get_by_label("Delete at sign-out")).to_be_checked()


def test_hostile_replies_run_nothing(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """No script runs, nothing is loaded and no dialog opens: while it streams, at its end and after a reload."""
    hostile = "\n\n".join(text.encode("utf-8", "replace").decode() for text in HOSTILE)
    pieces = [hostile[start : start + 40] for start in range(0, len(hostile), 40)]
    upstream.script(Sse([ROLE, *map(said, pieces), STOP, usage_chunk()]))
    page = open_page()
    shown = list[str]()
    page.on("dialog", lambda dialog: note_dialog(dialog, shown))
    open_chat(page, email)
    ask(page, "Be hostile. <img src=x onerror=alert(1)> [x](javascript:alert(1))")
    expect(page.get_by_text("11 in, 7 out")).to_be_visible()
    for _ in range(2):
        bad = page.locator(
            ".thread :is(script, img, svg, iframe, style, form, object, [onerror], [onclick], [style], [id=csrf])"
        )
        expect(bad).to_have_count(0)
        links = page.locator(".thread a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
        assert links
        assert all(link.lower().startswith(("http://", "https://", "mailto:")) for link in links)
        page.reload()
        page.wait_for_selector("#chat[data-ready]")
    assert shown == []


def so_far(service: Service, email: str) -> str:
    """What the page says of the cost of a conversation that is the only one of the account."""
    return f"${(CREDIT_NANO - balance_nano(service, email)) / 10**9:.9f}"[:9] + " so far"


def note_dialog(dialog: Dialog, shown: list[str]) -> None:
    shown.append(dialog.message)
    dialog.dismiss()


def test_export_and_import(open_page: OpenPage, upstream: LoopbackUpstream, email: str, tmp_path: Path) -> None:
    """An export can be imported in another browser, where its text is rendered again; a bad file is refused."""
    upstream.script(whole("Some **bold** words."))
    page = open_page(accept_downloads=True)
    open_chat(page, email)
    ask(page, "First words of mine")
    expect(replies(page).get_by_text("11 in, 7 out")).to_be_visible()  # from now on it is kept
    archive = export(page, tmp_path)
    assert archive.read("conversation.md").decode().endswith("## Reply (forte)\n\nSome **bold** words.\n")
    exported = json.loads(archive.read("cadenza-chat.json"))
    message = next(one for one in exported["conversations"][0]["messages"].values() if one["role"] == "assistant")
    assert message["text"] == "Some **bold** words."
    assert "html" not in message
    message["html"] = "<img src=x onerror=alert(1)>"
    file = tmp_path / "export.json"
    file.write_text(json.dumps(exported))
    other = open_page()
    open_chat(other, email)
    other.get_by_text("Kept in this browser only").click()
    bad = tmp_path / "bad.json"
    reasons = {"{": "is damaged", "{}": "not an export", looping(exported): "circle", "PK\3\4": "damaged"}
    for text, reason in reasons.items():
        bad.write_text(text)
        other.get_by_label("File to import").set_input_files(bad)
        expect(other.get_by_role("alert")).to_contain_text(reason)
    other.get_by_label("File to import").set_input_files(file)
    other.get_by_role("button", name="First words of mine").click()
    expect(replies(other).locator("strong")).to_have_text("bold")
    expect(other.locator(".thread img")).to_have_count(0)
    other.get_by_role("button", name="Delete all").click()
    other.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    expect(other.get_by_text("What would you like to know?")).to_be_visible()
    expect(listed(other, "First words of mine")).to_have_count(0)


def test_the_list_has_days_pins_and_titles(open_page: OpenPage, email: str, tmp_path: Path) -> None:
    """Conversations are grouped by day, pinned ones first; pins and titles stay; a deleted one is gone in all tabs."""
    dates = {"now": NOON, "before": NOON - timedelta(days=1), "week": NOON - timedelta(days=6)}
    dates |= {"month": NOON - timedelta(days=29), "year": NOON - timedelta(days=400)}
    file = tmp_path / "dated.json"
    file.write_text(dated(dates))
    page = open_page(timezone_id="UTC", accept_downloads=True)
    page.clock.set_fixed_time(NOON)
    open_chat(page, email)
    page.get_by_label("File to import").set_input_files(file)
    groups, lines = page.locator("#conversations h2"), page.locator("#conversations li")
    expect(groups).to_have_text(["Today", "Yesterday", "Last 7 days", "Last 30 days", "October 2025"])
    expect(lines.locator("time")).to_have_text(["12:00", "12:00", "12 Nov", "20 Oct", "14 Oct 2025"])
    choose(page, "year", "Pin")
    rename(page, "month", "Another <b>title</b>")
    for _ in range(2):
        expect(groups).to_have_text(["Pinned", "Today", "Yesterday", "Last 7 days", "Last 30 days"])
        expect(lines.locator(".truncate")).to_have_text(["year", "now", "before", "week", "Another <b>title</b>"])
        reload_chat(page)
    folders = ["year", "now", "before", "week", "Another _b_title__b_"]
    names = export(page, tmp_path).namelist()
    assert sorted(names) == sorted([*(f"{one}/conversation.md" for one in folders), "cadenza-chat.json"])
    choose(page, "year", "Unpin")
    expect(groups.first).to_have_text("Today")
    listed(page, "week").get_by_role("button", name="week").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("week")
    other = page.context.new_page()
    other.goto("/chat")
    choose(other, "week", "Delete")
    other.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    choose(other, "week", "Delete")
    other.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(listed(other, "week")).to_have_count(0)
    ask(page, "More?")
    expect(page.get_by_role("alert")).to_have_text("This conversation was deleted in another tab. It is not kept.")
    reload_chat(page)
    expect(lines).to_have_count(4)


def test_the_class_writes_the_title_once(
    open_page: OpenPage, upstream: LoopbackUpstream, service: Service, email: str
) -> None:
    """It is a charged request after the first reply; it keeps a person's title, fails once, and can be turned off."""
    written = Whole(['**Title: "How plants eat light"**\nA title'], LONG_USAGE)
    upstream.script(whole("They eat light."), written, whole("All of them."))
    page = open_page()
    open_chat(page, email, titles=True)
    title, total = page.get_by_role("heading", level=1), page.locator("#total")
    ask(page, "What do plants do all day, please?")
    expect(title).to_have_text("How plants eat light")
    expect(listed(page, "How plants eat light")).to_have_count(1)
    expect(total).to_have_text(so_far(service, email))
    asked = upstream.requests[1].json
    assert (asked["model"], asked["max_tokens"]) == ("loopback-forte", 40)
    assert "What do plants do all day, please?" in asked["messages"][-1]["content"]
    ask(page, "Which ones?")
    expect_replies(page, 2)

    pause = Pause()
    upstream.script(whole("One."), Whole(["A title of the class"], LONG_USAGE, pause))
    page.get_by_role("button", name="New conversation").click()
    ask(page, "A second question")
    pause.wait_until_reached()
    rename(page, "A second question", "Mine")
    expect(title).to_have_text("Mine")
    pause.release()
    expect(total).to_contain_text("$0.001")
    expect(title).to_have_text("Mine")

    upstream.script(whole("Two."), Status(500), whole("Three."), whole("Four."))
    page.get_by_role("button", name="New conversation").click()
    ask(page, "A third question")
    upstream.wait_for_request(7)
    ask(page, "And more")
    expect_replies(page, 2)
    expect(title).to_have_text("A third question")
    page.get_by_text("Settings", exact=True).last.click()
    page.get_by_label("Written titles").uncheck()
    reload_chat(page)
    page.get_by_role("button", name="New conversation").click()
    ask(page, "A fourth question")
    expect_replies(page, 1)
    assert [request.json.get("max_tokens") for request in upstream.requests].count(40) == 3
    assert len(upstream.requests) == 9
    assert len(service.ledger.charges_of(email)) == 8


def test_a_sentence_is_no_title(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """What is a sentence, a part of the reply or long is charged, but the first words stay."""
    page = open_page()
    open_chat(page, email, titles=True)
    for bad in ("need much light", "I'm glad to help", "They like it.", "a " * 9):
        upstream.script(whole("Plants need much light."), Whole([bad], LONG_USAGE))
        page.get_by_role("button", name="New conversation").click()
        ask(page, "What do plants like?")
        expect(page.locator("#total")).to_contain_text("$0.001")
        expect(page.get_by_role("heading", level=1)).to_have_text("What do plants like?")


def dated(dates: dict[str, datetime]) -> str:
    """An export of conversations with these titles and times."""
    conversations = [
        {"title": title, "changed": at.timestamp() * 1000, "messages": {"a": {"role": "user", "text": "x"}}}
        for title, at in dates.items()
    ]
    return json.dumps({"format": "cadenza-chat", "version": 1, "conversations": conversations})


def looping(exported: dict[str, object]) -> str:
    messages = {"a": {"role": "user", "text": "x", "parent": "b"}, "b": {"role": "user", "text": "x", "parent": "a"}}
    return json.dumps({**exported, "conversations": [{"messages": messages}]})


def test_errors_say_what_to_do(open_page: OpenPage, service: Service, upstream: LoopbackUpstream) -> None:
    """Without credit there is a link to add some; after a fault one can try again; the question is not lost."""
    email = service.create_account(0)
    page = open_page()
    open_chat(page, email)
    ask(page, "Hello?")
    expect(page.get_by_role("alert").get_by_role("link", name="Add credit")).to_have_attribute("href", "/credit")
    service.give_credit(email, CREDIT_NANO)
    upstream.script(Status(500), whole("Here I am."))
    ask(page, "Are you there?")
    expect(page.get_by_role("alert")).to_contain_text("Retry")
    expect(page.get_by_role("button", name="Send again")).to_be_hidden()  # it would do the same
    page.get_by_role("button", name="Try again").click()
    expect(replies(page)).to_contain_text("Here I am.")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_keyboard_instructions_class_and_drafts(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """A slash focuses the message, a draft survives a reload, and own instructions and the class are sent."""
    upstream.always(Good("Yes."))
    page = open_page()
    open_chat(page, email)
    page.get_by_role("button", name="Instructions").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("Answer in one word.")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Instructions ✓")).to_be_focused()
    page.get_by_label("Class").select_option("mezzo")
    page.get_by_role("button", name="New conversation").focus()
    page.keyboard.press("/")
    page.keyboard.type("Is it raining?")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("Now?")
    page.reload()
    page.wait_for_selector("#chat[data-ready]")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Is it raining?\nNow?")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(replies(page)).to_contain_text("mezzo · ")
    sent = upstream.wait_for_request().json
    assert sent["model"] == "loopback-mezzo"
    assert sent["messages"][0]["content"].endswith("Answer in one word.")
    assert sent["messages"][1]["content"] == "Is it raining?\nNow?"
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


def test_the_reader_is_not_pulled_to_the_end(open_page: OpenPage, upstream: LoopbackUpstream, email: str) -> None:
    """The thread follows a reply; once the reader scrolls up it stays where the reader is."""
    pauses = [Pause(), Pause()]
    lines = "".join(f"Line {number}.\n\n" for number in range(60))
    upstream.script(Sse([ROLE, said(lines), pauses[0], said("Middle.\n\n" + lines), pauses[1], said("Last."), STOP]))
    page = open_page()
    open_chat(page, email)
    ask(page, "Count.")
    to_end = "thread => thread.scrollHeight - thread.scrollTop - thread.clientHeight < 100"
    thread = page.locator("#thread")
    expect(thread.get_by_text("Line 59.")).to_be_visible()
    assert thread.evaluate(to_end)
    thread.evaluate("thread => { thread.scrollTop = 0 }")
    pauses[0].release()
    expect(thread.get_by_text("Middle.")).to_have_count(1)
    expect(thread.get_by_text("Line 59.")).to_have_count(2)
    assert not thread.evaluate(to_end)
    pauses[1].release()
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    assert thread.evaluate("thread => thread.scrollTop") == 0


@each_scheme
def test_on_a_phone(open_page: OpenPage, upstream: LoopbackUpstream, email: str, scheme: str) -> None:
    """The list is a drawer; a suggestion is sent with one touch; nothing is wider than the screen."""
    upstream.always(whole(MARKDOWN))
    page = open_page(viewport=PHONE, color_scheme=scheme, has_touch=True)
    open_chat(page, email)
    shoot(page, f"chat-empty-phone-{scheme}")
    page.get_by_role("button", name="Explain photosynthesis in one sentence.").click()
    expect(replies(page).get_by_role("table")).to_be_visible()
    assert page.evaluate("document.getElementById('main').scrollWidth <= innerWidth")
    shoot(page, f"chat-phone-{scheme}")
    page.get_by_role("button", name="Conversations", exact=True).click()
    shoot(page, f"chat-drawer-phone-{scheme}")
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_text("What would you like to know?")).to_be_visible()
