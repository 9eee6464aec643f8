"""What all tests share: no test fails because the machine was slow."""

import importlib.util

import pytest
from hypothesis import settings

if importlib.util.find_spec("ledgermq_server") is None:
    pytest.exit("the virtual environment is older than the packages: run `make install`", returncode=4)

settings.register_profile("ledgermq", deadline=None)
settings.load_profile("ledgermq")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what transcripts print back to their files")
