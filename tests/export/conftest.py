"""What tests of exports share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def untold_traces() -> Iterator[None]:
    """torch writes down every step of a trace for whoever listens, and pytest listens to all loggers: minutes in place of seconds."""
    logger = logging.getLogger("torch.__trace")
    before, logger.disabled = logger.disabled, True
    yield
    logger.disabled = before
