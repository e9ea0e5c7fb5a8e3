"""The steps of a trial about tools and turns: calls, forced calls, the turn after a call, reasoning, continuing."""

import msgspec

from cadenza.upstreams.trial import asks
from cadenza.upstreams.trial.dialects import accepts_call_id
from cadenza.upstreams.trial.session import Answer, Session, prompt_grows

SHORT_ID_CHARS = len(asks.SHORT_CALL_ID)
SEE_DIALECT = "No setting of a route changes this; see the line on the dialect."


async def try_tools(session: Session) -> None:
    """A call that the model is free to make, streamed if streams work."""
    answer = await session.send(asks.calling("auto", stream=session.stream is not None))
    session.takes_tools = answer.is_accepted
    if not answer.is_accepted:
        advice = "Turn tool calling on at the endpoint, or give these requests another route."
        session.add("tools", "warning", f"a request with tools: {session.words(answer)}", advice=advice)
    elif answer.called:
        session.add("tools", "ok", "the model calls a tool")
    elif prompt_grows(session.plain, answer) is False:
        advice = "Tools have no effect. Choose a model whose chat template knows tools."
        session.add("tools", "warning", "accepted, but tools do not make the prompt longer", advice=advice)
    else:
        session.add("tools", "ok", "accepted; the model answered in words")


async def try_forced(session: Session) -> None:
    """A function that is forced by name, without parallel calls."""
    is_left_out, setting = session.is_left_out("parallel_tool_calls"), ""
    answer = await session.send(asks.calling(asks.NAMED, parallel=False))
    if not answer.is_accepted and not is_left_out:
        answer = await session.send(asks.calling(asks.NAMED))
        setting = session.leave_out("parallel_tool_calls") if answer.is_accepted else ""
    if asks.FUNCTION in answer.called:
        beside = "left out by the config" if is_left_out else "refused" if setting else "accepted"
        found = f"a function that is forced by name is called; parallel_tool_calls is {beside}"
        session.add("forced", "warning" if setting else "ok", found, setting)
        return
    reaction = "refused" if not answer.is_accepted else "not called"
    found = f"a function that is forced by name is {reaction}"
    if session.dialect.named_choice and (await session.send(asks.calling("required"))).called:
        session.needs = msgspec.structs.replace(session.needs, ignores_named_choice=True)
        session.add("forced", "warning", f'{found}; "required" works', setting, SEE_DIALECT)
    else:
        session.add("forced", "warning", found, setting)


async def try_tool_turn(session: Session) -> None:
    """The turn after a call, whose message has null as its content."""
    if not session.takes_tools:
        session.add("tool turn", "ok", "not tried, as tools are refused")
        return
    answer = await session.send(asks.tool_turn())
    if answer.is_accepted:
        session.add("tool turn", "ok", "a call with null as its content and its result are accepted")
    elif found := await _find_what_works(session):
        session.add("tool turn", "warning", found, advice=SEE_DIALECT)
    else:
        session.add("tool turn", "warning", f"a call and its result: {session.words(answer)}")


async def _find_what_works(session: Session) -> str:
    """Try the forms that other upstreams want. What was found, or nothing."""
    if session.dialect.null_content == "null":
        contents: tuple[tuple[asks.Content, str], ...] = (("empty", "an empty string"), ("omit", "no content"))
        for content, words in contents:
            if (await session.send(asks.tool_turn(content))).is_accepted:
                session.needs = msgspec.structs.replace(session.needs, null_content=content)
                return f"null as the content of a call is refused, {words} is accepted"
    if accepts_call_id(session.dialect):
        answer = await session.send(asks.tool_turn(call_id=asks.SHORT_CALL_ID))
        if answer.is_accepted:
            session.needs = msgspec.structs.replace(session.needs, refuses_call_id=True)
            return f"only call ids of {SHORT_ID_CHARS} letters and digits are accepted"
    return ""


async def try_reasoning(session: Session) -> None:
    """Whether replies had reasoning, and whether it may be sent back in the next turn."""
    seen = f"replies have {session.reasoning_field}" if session.reasoning_field else "no reasoning in replies"
    if "drop" in (session.route.reasoning, session.dialect.reasoning):
        session.add("reasoning", "ok", f"{seen}; the config does not send it back")
        return
    field = session.reasoning_field if session.reasoning_field == "reasoning" else "reasoning_content"
    answer = await session.send(asks.reasoning_sent_back(field))
    without = msgspec.structs.replace(session.route, reasoning="drop")
    if answer.is_accepted:
        session.add("reasoning", "ok", f"{seen}; accepted in a next turn")
    elif not (await session.send(asks.reasoning_sent_back(field), without)).is_accepted:
        session.add("reasoning", "warning", f"{seen}; a next turn is refused even without it")
    else:
        session.needs = msgspec.structs.replace(session.needs, refuses_reasoning=True)
        session.add("reasoning", "warning", f"{seen}; refused in a next turn", 'reasoning = "drop"')


async def try_custom_tools(session: Session) -> None:
    if not session.route.custom_tools:
        session.add("custom", "ok", f"the dialect {session.dialect_name} has no custom tools")
        return
    answer = await session.send(asks.custom_tool())
    session.add("custom", "ok", f"custom tools are {_accepted(answer)}")


async def try_continuing(session: Session) -> None:
    """Only for a route that says it can continue an answer which another route began."""
    if not session.route.continues:
        return
    answer = await session.send(asks.continuing())
    if not answer.is_accepted:
        session.add("continue", "warning", "continuing an answer is refused", "continue = false")
    elif answer.text.lstrip().startswith(asks.BEGUN[:4]):
        session.add("continue", "warning", "the answer begins again instead of going on", "continue = false")
    else:
        session.add("continue", "ok", "an answer that was begun is accepted")


def _accepted(answer: Answer) -> str:
    return "accepted" if answer.is_accepted else "refused"
