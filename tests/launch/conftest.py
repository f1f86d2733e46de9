"""A finished run that the tests of what comes after training share."""

from pathlib import Path

import pytest
from finished_run import make_finished_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The folder of a finished run; `merged` two folders above is its model."""
    return make_finished_run(tmp_path_factory.mktemp("finished"))
