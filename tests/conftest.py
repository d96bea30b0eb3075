"""What every test may use."""

from pathlib import Path

import pytest

from pyramidvit.cpu import limit_spinning

limit_spinning()

SHARED = Path(__file__).parents[2] / "shared"
"""Reference outputs and real pictures kept beside the project; tests that need them skip when they are absent."""


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the reference data folder 'shared' is not beside the project")
    return SHARED
