"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The third-party task data beside the checkout; missing only outside CI."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"no task data at {path}")
        pytest.skip(f"no task data at {path}")
    return path
