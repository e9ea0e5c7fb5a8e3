"""Grounding of the plain path: attachments, memory and web search add reference material to a chat request.

    wanted    which parts apply to the request
    gather    reads the files, recalls notes and searches, each with a time limit and a token budget
    material  fences what was found, and inserts it into the messages
    answer    removes repeated fence tags from the answer, and finds its citations

`gather.Grounder.ground` tells the story. A part that fails or is late is left out and counted, and the reply still
comes. Only a file that cannot be read is an error: 400, with its name.
"""
