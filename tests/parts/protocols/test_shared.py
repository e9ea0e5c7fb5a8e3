"""Tests of the core, with the protocols of this part: what holds for a chat holds for their requests too."""

import pytest

from cadenza.gateway.answers import ErrorShape
from cadenza.parts.protocols.anthropic import MESSAGE_ERRORS
from cadenza.parts.protocols.responses_reply import ResponseEvents
from cadenza.parts.protocols.translation import Kept
from tests.contract.test_leaving import (
    test_leaving_before_the_reply_closes_the_upstream,
    test_leaving_mid_stream_closes_the_upstream,
)
from tests.contract.test_leaving_cost import (
    test_leaving_before_a_word_was_delivered_costs_the_prompt,
)
from tests.fault.test_kill import test_killed_requests_are_settled_once_by_the_next_start
from tests.unit.gateway.test_answers import test_an_error_ends_an_unfinished_event
from tests.unit.gateway.test_outcome import (
    test_a_client_that_disconnects_before_the_answer_begins,
    test_a_client_that_disconnects_in_a_stream,
    test_a_served_request,
    test_a_shutdown_before_the_answer_begins,
    test_a_shutdown_in_a_stream,
    test_an_internal_error,
)
from tests.unit.gateway.test_unpaid import test_what_a_long_prompt_took_to_count_is_charged

__all__ = [
    "test_a_client_that_disconnects_before_the_answer_begins",
    "test_a_client_that_disconnects_in_a_stream",
    "test_a_served_request",
    "test_a_shutdown_before_the_answer_begins",
    "test_a_shutdown_in_a_stream",
    "test_an_error_ends_an_unfinished_event",
    "test_an_internal_error",
    "test_killed_requests_are_settled_once_by_the_next_start",
    "test_leaving_before_a_word_was_delivered_costs_the_prompt",
    "test_leaving_before_the_reply_closes_the_upstream",
    "test_leaving_mid_stream_closes_the_upstream",
    "test_what_a_long_prompt_took_to_count_is_charged",
]

RESPONSE_ERRORS = ErrorShape(MESSAGE_ERRORS.reply, ResponseEvents("chatcmpl-1", 0, "auto", Kept()).failed)


@pytest.fixture(params=[MESSAGE_ERRORS, RESPONSE_ERRORS], ids=["messages", "responses"])
def errors(request: pytest.FixtureRequest) -> ErrorShape:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def counting() -> tuple[str, int]:
    """The path that counts a prompt, and its status."""
    return "/v1/messages/count_tokens", 200
