"""A real upstream on a loopback port, scripted to answer well, badly or not at all.

chunks.py makes bytes and JSON, replies.py the scripted replies, server.py serves them.
"""

from tests.loopback.chunks import *  # noqa: F403
from tests.loopback.replies import *  # noqa: F403
from tests.loopback.server import *  # noqa: F403
