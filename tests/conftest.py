"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples in every run; `pytest --hypothesis-profile search` looks for new ones.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("repeatable")
