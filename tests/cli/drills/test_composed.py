"""A cluster of containers that does not start is refused for its own reason."""

import shutil

import pytest

from chaos.compose import ComposeCluster, ComposeError
from cli import composed
from node.errors import CommandError


async def refusal() -> str:
    with pytest.raises(CommandError) as error:
        async with composed.compose_cluster("sync"):
            pass
    return str(error.value)


async def test_only_where_there_is_no_engine_its_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "no Docker engine answers here" in (text := await refusal())
    assert "apt install docker.io docker-compose" in text

    def refuse(self: ComposeCluster) -> None:
        raise ComposeError("port is already allocated")

    monkeypatch.setattr(composed, "compose_command", lambda _: ["docker-compose"])
    monkeypatch.setattr(ComposeCluster, "up", refuse)
    assert await refusal() == "port is already allocated"
