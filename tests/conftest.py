"""What all tests share: no test fails because the machine was slow."""

import pytest
from hypothesis import settings

settings.register_profile("ledgermq", deadline=None)
settings.load_profile("ledgermq")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what transcripts print back to their files")
