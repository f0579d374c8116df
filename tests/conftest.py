from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Examples are bounded by number, never by time: a busy machine must not fail a law. `make test` draws the same examples
# every time, so that it says the same of the same code; `make nightly` draws new ones, and more.
settings.register_profile("laws", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("thorough", settings.get_profile("laws"), max_examples=2000, derandomize=False)
if settings.get_current_profile_name() in ("default", "ci"):
    settings.load_profile("laws")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop that the gateway runs on."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """The command line sets up logging for the whole process; run inside a test it must not outlive it."""
    loggers = [logging.getLogger(), logging.getLogger("gateway")]
    levels = [logger.level for logger in loggers]
    before = list(loggers[0].handlers)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in loggers[0].handlers[:]:
        if handler not in before and type(handler).__module__.startswith("gateway"):
            loggers[0].removeHandler(handler)
