"""Errors of a chat request in the words of the chat page: the API's own name fields, which its visitors do not know."""

from cadenza.core.errors import ContextOverflow, InvalidRequest, NotTaken, UnreadableAttachment

THINGS = {"vision": "images", "files": "files", "audio": "audio"}


def in_plain_words(error: InvalidRequest) -> InvalidRequest:
    """The error for people. One that has no other words stays as it is."""
    if isinstance(error, UnreadableAttachment):
        return InvalidRequest(f"{error.name} cannot be read: {error.reason}.")
    if isinstance(error, ContextOverflow):
        return InvalidRequest(
            f"The conversation is too long: it has {error.prompt_tokens:,} tokens, and the class takes "
            f"{error.window_tokens:,}. Begin a new one, or choose another class."
        )
    if isinstance(error, NotTaken) and (things := THINGS.get(error.need)):
        ways_out = ["Remove them", *([f"choose {' or '.join(error.able_classes)}"] if error.able_classes else [])]
        return InvalidRequest(f"{error.class_id} takes no {things}. {', or '.join(ways_out)}.")
    return error
