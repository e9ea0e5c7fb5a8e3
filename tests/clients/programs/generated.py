"""A client that was generated from /openapi.json as the package `generated_client`: it lists models and chats."""

import json
import os

from generated_client import AuthenticatedClient
from generated_client.api.chat import create_chat_completion
from generated_client.api.models import list_models
from generated_client.models import ChatRequest, Error, SystemMessage, TextPart, UserMessage

client = AuthenticatedClient(os.environ["CADENZA_BASE_URL"].removesuffix("/v1"), token=os.environ["CADENZA_API_KEY"])
system = SystemMessage(role="system", content="Be brief.")
user = UserMessage(role="user", content=[TextPart(type_="text", text="Hello.")])
reply = create_chat_completion.sync(client=client, body=ChatRequest(messages=[system, user], max_tokens=20))
refused = create_chat_completion.sync(client=client, body=ChatRequest(messages=[]))
assert isinstance(refused, Error)
told = {
    "models": [model.id for model in list_models.sync(client=client).data],
    "plain": reply.choices[0].message.content,
    "error": refused.error.type_,
}
print(json.dumps(told))  # noqa: T201
