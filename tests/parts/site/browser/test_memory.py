"""Notes in a real browser: added, edited and deleted without scripts, on a desk and on a phone."""

import pytest
from playwright.sync_api import Page, expect

from tests.parts.site.browser.conftest import OpenPage, serious_findings, shoot, sign_in
from tests.parts.site.browser.looks import LOOKS, each_look

LONG = "Unbreakable" * 20 + "\nsecond line, which is long enough to be wrapped on a phone and perhaps on a desk too"
pytestmark = pytest.mark.slow(reason="a browser manages notes")


def write(page: Page, text: str) -> None:
    form = page.get_by_role("region", name="Add a note")
    form.get_by_label("Note").fill(text)
    form.get_by_role("button", name="Add the note").click()
    expect(page.get_by_role("status")).to_contain_text("The note is added")


def test_a_note_lives_and_ends_without_scripts(open_page: OpenPage, email: str) -> None:
    """It is added, edited and deleted by plain forms."""
    page = open_page(java_script_enabled=False)
    sign_in(page, email)
    page.goto("/settings")
    page.get_by_role("link", name="Memory", exact=True).click()
    write(page, "I write British English.")
    notes = page.get_by_role("region", name="Your notes")
    expect(notes.get_by_role("listitem")).to_contain_text("I write British English.")
    notes.get_by_text("Edit or delete").click()
    notes.get_by_label("Note").fill("I write Canadian English.")
    notes.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("The note is changed")
    expect(notes.get_by_role("listitem")).to_contain_text("I write Canadian English.")
    notes.get_by_text("Edit or delete").click()
    notes.get_by_role("button", name="Delete the note").click()
    expect(page.get_by_role("heading", name="No notes yet")).to_be_visible()


@each_look
def test_the_page_is_accessible_and_fits(open_page: OpenPage, email: str, look: str) -> None:
    """axe-core finds nothing serious, no line is too wide, a long text is counted, and deleting asks first."""
    page = open_page(**LOOKS[look])
    sign_in(page, email)
    page.goto("/settings/memory")
    shoot(page, f"memory-empty-{look}")
    for text in ("I write British English.", LONG):
        write(page, text)
    page.get_by_text("Edit or delete").first.click()
    note = page.get_by_role("region", name="Add a note").get_by_label("Note")
    note.fill("x" * 1_001)
    expect(page.get_by_text("1,001 of 1,000 characters: shorten the note.")).to_be_visible()
    assert note.evaluate("field => [field.value.length, field.validity.customError]") == [1001, True]
    shoot(page, f"memory-{look}")
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.get_by_role("button", name="Delete the note").first.click()  # the question is dismissed
    expect(page.get_by_role("region", name="Your notes").get_by_role("listitem")).to_have_count(2)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete the note").first.click()
    expect(page.get_by_role("status")).to_contain_text("The note is deleted.")
