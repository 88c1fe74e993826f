"""Where the rig keeps what it makes: under the user's cache directory, and nothing in the checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[1]
SHIM: Final = CHECKOUT / "acceptance" / "shim"


def cache() -> Path:
    """Give the directory of the rig's environments, wheels, models and results."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "kvfence" / "acceptance"
