"""How a browser looks at pages: in the light, or in the dark and on a phone.

In CI only test_design.py looks in the dark, at the pages with most parts; the other tests do so before a release.
"""

from typing import Any

import pytest

PHONE = {"width": 390, "height": 844}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark-phone": {"color_scheme": "dark", "viewport": PHONE},
}
DARK = pytest.mark.release(reason="what is wrong in the dark alone is mostly wrong on the pages with most parts")
each_look = pytest.mark.parametrize("look", ["light", pytest.param("dark-phone", marks=DARK)])
each_scheme = pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=DARK)])
