"""The page of notes and its endpoints: what they keep, what they refuse, and whose notes they touch."""

import secrets
from typing import Any

from tests.service import Service, wait_until
from tests.visitor import Visitor, until_refused

PAGE = "/settings/memory"
HOSTILE = '"></textarea><script>alert(1)</script><img src=x onerror=alert(1)>'


def notes_of(visitor: Visitor) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = visitor.api("GET", "/memory").json["data"]
    return found


def add(visitor: Visitor, text: str = "I write British English.") -> str:
    """Add a note by the endpoint and return its id."""
    seen = visitor.api("POST", "/memory", {"text": text})
    assert seen.status == 200, seen.text
    return str(seen.json["id"])


def test_a_deleted_note_leaves_the_files_of_the_store(service: Service, visitor: Visitor) -> None:
    """Within seconds neither the store nor its write-ahead log has the text of a note that was deleted or replaced."""
    first, second = f"first {secrets.token_hex(12)}", f"second {secrets.token_hex(12)}"
    ids = [add(visitor, text) for text in (first, second)]
    assert all(_is_in_store(service, text) for text in (first, second))
    assert visitor.api("DELETE", f"/memory/{ids[0]}").status == 204
    assert visitor.api("PATCH", f"/memory/{ids[1]}", {"text": "x"}).status == 200
    wait_until(lambda: not any(_is_in_store(service, text) for text in (first, second)), "the texts being gone")


def _is_in_store(service: Service, text: str) -> bool:
    return any(
        text.encode() in path.read_bytes() for path in service.store.parent.glob("cadenza.db*") if path.is_file()
    )


def test_the_page_adds_changes_and_deletes_a_note(visitor: Visitor) -> None:
    """All by plain forms; the newest note comes first."""
    assert "No notes yet" in visitor.get(PAGE).words
    assert visitor.post(PAGE, {"text": "Line one\r\nline two"}).location == f"{PAGE}?note=note-added"
    visitor.post(PAGE, {"text": "The second"})
    first, second = notes_of(visitor)
    assert (first["text"], second["text"]) == ("Line one\nline two", "The second")
    page = visitor.get(f"{PAGE}?note=note-added")
    assert "The note is added." in page.words
    assert page.words.index("The second") < page.words.index("Line one")
    assert visitor.post(f"{PAGE}/{first['id']}", {"text": "Changed"}).location == f"{PAGE}?note=note-changed"
    assert visitor.post(f"{PAGE}/{second['id']}/remove").location == f"{PAGE}?note=note-removed"
    assert [note["text"] for note in notes_of(visitor)] == ["Changed"]


def test_the_endpoints_do_the_same(visitor: Visitor) -> None:
    """Notes are listed oldest first, with their times; a deleted note is gone."""
    first, second = add(visitor), add(visitor, "The second")
    assert [note["id"] for note in notes_of(visitor)] == [first, second]
    changed = visitor.api("PATCH", f"/memory/{first}", {"text": " Changed "})
    assert (changed.status, changed.json["text"], changed.json["object"]) == (200, "Changed", "note")
    assert changed.json["changed_at"] >= changed.json["created_at"]
    assert visitor.api("DELETE", f"/memory/{second}").status == 204
    assert visitor.api("DELETE", f"/memory/{second}").status == 404
    assert [note["id"] for note in notes_of(visitor)] == [first]


def test_the_page_shows_whether_memory_is_on(visitor: Visitor) -> None:
    """With a link to the preferences, where it is switched."""
    assert "Memory is on" in visitor.get(PAGE).words
    visitor.api("PATCH", "/preferences", {"memory": False})
    page = visitor.get(PAGE)
    assert "Memory is off Replies do not use your notes." in page.words
    assert '<a href="/settings">' in page.text


def test_after_a_mistake_the_text_stays_in_its_form(visitor: Visitor) -> None:
    """Of the new note, and of the note that was edited."""
    note = add(visitor)
    seen = visitor.post(PAGE, {"text": "a\tb"})
    assert (seen.status, 'role="alert"' in seen.text, "a\tb</textarea>" in seen.text) == (400, True, True)
    seen = visitor.post(f"{PAGE}/{note}", {"text": "c\td"})
    assert (seen.status, "<details open>" in seen.text, "c\td</textarea>" in seen.text) == (400, True, True)


def test_a_hostile_note_is_only_text(visitor: Visitor) -> None:
    """It is escaped wherever the page shows it."""
    add(visitor, HOSTILE)
    page = visitor.get(PAGE).text
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 2


def test_changes_are_limited(visitor: Visitor) -> None:
    """An account that changes its notes too fast gets 429 with the time to wait."""
    *served, limited = until_refused(lambda: visitor.api("DELETE", "/memory/note_unknown"))
    assert {seen.status for seen in served} == {404}
    assert limited.status == 429
    assert int(limited.headers["retry-after"]) >= 1
