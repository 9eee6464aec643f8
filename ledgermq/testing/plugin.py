"""The pytest plugin of `ledgermq`: the fixture `ledgermq_cluster`, one warm Raft cluster of three for all tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ledgermq.testing import Cluster


@pytest.fixture(scope="session")
def ledgermq_session_cluster() -> "Iterator[Cluster]":
    """Start the cluster of the session when the first test asks for it. Tests use `ledgermq_cluster`."""
    from ledgermq.testing import Cluster

    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def ledgermq_cluster(ledgermq_session_cluster: "Cluster") -> "Iterator[Cluster]":
    """Return a whole cluster: a test may kill, pause and cut off its nodes; afterwards everything is undone."""
    yield ledgermq_session_cluster
    ledgermq_session_cluster.mend()
