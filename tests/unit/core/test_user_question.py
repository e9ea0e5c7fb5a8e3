"""What was asked last."""

import json
from typing import Any

from cadenza.core.chat import UserQuestion, find_user_question
from cadenza.gateway.validate import parse_chat


def asked(*messages: dict[str, Any]) -> UserQuestion | None:
    chat = parse_chat(json.dumps({"messages": messages}).encode())
    assert isinstance(chat.texts, list)
    return find_user_question(chat.messages, chat.texts)


def test_the_last_three_questions_are_found() -> None:
    """The texts of the last three user messages, oldest first, and where the last one stands."""
    said = [{"role": role, "content": str(number)} for number in range(5) for role in ("user", "assistant")]
    found = asked(*said)
    assert found
    assert (found.message, found.texts, found.text) == (8, ("2", "3", "4"), "4")
    assert found.words_start == len('{"role": "user", "content": ')


def test_a_conversation_without_a_question_has_none() -> None:
    """Nothing can be added to it."""
    assert asked({"role": "system", "content": "Be brief."}) is None


def test_a_message_with_a_field_twice_has_no_place() -> None:
    """Nobody knows which content counts."""
    chat = parse_chat(b'{"messages":[{"role":"user","content":"a","content":"b"}]}')
    assert isinstance(chat.texts, list)
    found = find_user_question(chat.messages, chat.texts)
    assert found
    assert found.words_start is None
