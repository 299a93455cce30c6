"""A plugin of pytest for searches that take minutes: `-p tools.searches --hypothesis-profile=search`.

Hypothesis makes a failing example smaller for up to five minutes. A run of everything does not need that: what failed
is printed with its blob, and the test alone (without this profile) makes the same example, and then a small one.
"""

from __future__ import annotations

from typing import Final

from hypothesis import Phase, settings

SEARCH_PROFILE: Final = "search"

settings.register_profile(
    SEARCH_PROFILE, parent=settings.get_profile("ci"), phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
