"""Shared by the message tests: the golden record cases and a strategy of drafts."""

import json
from pathlib import Path
from typing import Any

import pytest

RECORDS = Path(__file__).parents[1] / "golden" / "records"
CASES = sorted(p.stem for p in RECORDS.glob("*.json") if p.with_suffix(".bin").exists())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_case" in metafunc.fixturenames:
        metafunc.parametrize("golden_case", CASES, indirect=True)


@pytest.fixture
def golden_case(request: pytest.FixtureRequest) -> tuple[bytes, dict[str, Any]]:
    """The bytes and the manifest of one golden record file."""
    path = RECORDS / f"{request.param}.bin"
    return path.read_bytes(), json.loads(path.with_suffix(".json").read_text())


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """Ids, properties, hashes and CRCs as upstream computes them."""
    loaded: dict[str, Any] = json.loads((RECORDS / "vectors.json").read_text())
    return loaded
