"""Ports of a local cluster: what is in use is refused by name, and two clusters never get the same block."""

import itertools
import os
import socket
from collections.abc import Iterator

import pytest

from cli.cluster.ports import is_free, owner_of, require_free, reserve_block
from node.errors import CommandError


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def port_of(server: socket.socket) -> int:
    port: int = server.getsockname()[1]
    return port


def test_a_port_that_somebody_listens_at_is_not_free(listener: socket.socket) -> None:
    assert not is_free(port_of(listener))


def test_the_owner_of_a_port_is_named_by_pid_and_command(listener: socket.socket) -> None:
    owner = owner_of(port_of(listener))
    assert owner is not None
    assert owner.startswith(f"pid {os.getpid()} (")


def test_a_port_nobody_listens_at_has_no_owner() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert owner_of(port_of(unused)) is None


def test_ports_in_use_are_refused_with_number_and_owner(listener: socket.socket) -> None:
    with pytest.raises(CommandError, match=rf"port {port_of(listener)} is in use by pid {os.getpid()}"):
        require_free([port_of(listener)])


def test_a_block_at_a_given_base_is_refused_when_one_of_its_ports_is_in_use(listener: socket.socket) -> None:
    with pytest.raises(CommandError, match="nothing was started"):
        reserve_block(10, [0, 5], port_of(listener) - 5)


def test_blocks_of_any_size_reserved_at_the_same_time_do_not_overlap() -> None:
    blocks = [reserve_block(size, [0], None) for size in (80, 40, 80, 40, 100)]
    try:
        blocks.sort(key=lambda block: block.base)
        assert all(before.base + before.size <= after.base for before, after in itertools.pairwise(blocks))
    finally:
        for block in blocks:
            block.release()


def test_a_block_is_refused_while_it_is_reserved_and_given_after_its_release() -> None:
    first = reserve_block(40, [0], None)
    with pytest.raises(CommandError, match="reserved by another cluster"):
        reserve_block(40, [0], first.base)
    first.release()
    reserve_block(40, [0], first.base).release()


def test_a_block_that_overlaps_a_reserved_one_is_refused() -> None:
    first = reserve_block(80, [0], None)
    try:
        with pytest.raises(CommandError, match="reserved by another cluster"):
            reserve_block(40, [0], first.base + 41)
    finally:
        first.release()


def test_the_preferred_block_is_taken_when_it_is_free() -> None:
    first = reserve_block(40, [0], None)
    second = reserve_block(40, [0], None)
    second.release()
    try:
        again = reserve_block(40, [0], None, preferred=second.base)
        assert again.base == second.base
        again.release()
    finally:
        first.release()
