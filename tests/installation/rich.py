"""Hides rich from the processes of the service, as in an installation: only tools for development need it.

structlog imports it where it can, which makes every start a tenth of a second longer.
"""

raise ImportError("rich is not part of an installation")
