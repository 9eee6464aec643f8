"""Runs tests of this project inside a test, in this process, where a bug may be planted."""

import gc
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest

PROJECT = Path(__file__).parents[2]
_LEFT_OUT = (
    "cacheprovider",
    "faulthandler",
    "pytest_timeout",
    "threadexception",
    "unraisableexception",
    "xdist.plugin",
)
"""Plugins that are there once a process, in the run around."""


@dataclass(eq=False)  # pytest keeps plugins in sets
class Outcome:
    """The node ids of the tests that were found, of those that passed, and of those that failed in their own body."""

    found: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "timeout: of a plugin that is left out")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.found.update(item.nodeid for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            (self.passed if report.passed else self.failed).add(report.nodeid)


def run(tests: Collection[str], folder: Path, *options: str) -> Outcome:
    """Run tests by their node ids."""
    outcome = Outcome()
    left_out = [word for name in _LEFT_OUT for word in ("-p", f"no:{name}")]
    words = ["-q", "--rootdir", str(PROJECT), "--basetemp", str(folder), *left_out, *options]
    with patch.dict(os.environ), patch("sys.unraisablehook"):  # a test that fails half-way leaves connections open
        for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
            del os.environ[name]
        pytest.main([*words, *(str(PROJECT / test) for test in tests)], plugins=[outcome])
        gc.collect()
    return outcome
