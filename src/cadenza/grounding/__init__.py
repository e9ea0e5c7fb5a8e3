"""Grounding of the plain path: attachments, memory and web search add reference material to the last user message.

`stage` is the step of a chat request; each part has a time limit and a limit of tokens. A part that fails or is late is
left out and counted, and the reply still comes. Only a file that cannot be read is an error: 400, with its name.
"""
