"""What the tests of the HTTP side share."""

from __future__ import annotations

import pytest

from kvfence.engine.http.text import Text
from tests.engine.http.models import write_model


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    """Open the model in which every byte is a token."""
    return Text.open(write_model(tmp_path_factory.mktemp("model")))
