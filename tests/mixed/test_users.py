"""Users and policies that RocketMQ's broker keeps in its database come over: by RocketMQ's own tool, or by ours."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from cli.main import main
from ledgermq.client import Credentials, LedgerMQError, Producer
from tests.limits import STRANGER_WAIT_S
from tests.mixed.nodes import Node, Street
from tests.mixed.traffic import brokers
from tests.mqadmin.driver import Driver

Eventually = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]
ROOT: Final = ("root", "root-secret")
_AUTH: Final = "org.apache.rocketmq.auth"
_JAVA_KEEPS: Final = {
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
_OURS_CHECKS: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
}


@pytest.fixture
def signing_mqadmin(jars: Path, tmp_path: Path) -> Iterator[Driver]:
    """mqadmin that signs as our broker's super user."""
    with contextlib.closing(Driver(f"{jars}/*", "none", tmp_path / "mqadmin")) as driver:
        driver.ask(["!user", *ROOT], int(STRANGER_WAIT_S * 1000))
        yield driver


async def test_copy_user_and_copy_acl_bring_a_java_brokers_users_and_policies_here(
    street: Street, eventually: Eventually, signing_mqadmin: Driver, tmp_path: Path
) -> None:
    (key := tmp_path / "password-key").write_text("k" * 64)
    key.chmod(0o600)
    namesrv = street.our_nameserver()
    java = street.java_broker("broker-j", namesrv, _JAVA_KEEPS)
    ours = street.our_broker("broker-o", namesrv, {**_OURS_CHECKS, "passwordKeyFile": key})

    async def are_there() -> bool:
        return {"broker-j", "broker-o"} <= set(await brokers(namesrv))

    def ask(*words: str) -> str:
        return signing_mqadmin.ask_until_answered(*words, "-n", namesrv.address)

    await eventually(are_there, "both brokers are registered")
    for user in ("alice", "bob"):
        ask("createUser", "-b", java.address, "-u", user, "-p", f"{user}-secret", "-t", "Normal")
    ask("createAcl", "-b", java.address, "-s", "User:alice", "-r", "Topic:Alices", "-a", "Pub", "-d", "Allow")
    assert "User:alice" in ask("listAcl", "-b", java.address)
    java.stop()
    java.start()  # so they come out of its database

    async def are_kept() -> bool:
        listed = ask("listUser", "-b", java.address)
        return "alice-secret" in listed and "bob-secret" in listed

    await eventually(are_kept, "the Java broker has read its users")
    route = ("-f", java.address, "-t", ours.address)
    copied = ask("copyUser", *route, "-u", "alice,bob")
    assert copied.count("success") == 2, copied
    assert "success" in ask("copyAcl", *route, "-s", "User:alice")
    java.stop()

    async def is_alone() -> bool:
        return set(await brokers(namesrv)) == {"broker-o"}

    await eventually(is_alone, "only our broker is left")
    await may_only_send(namesrv, "alice", "alice-secret", "Alices")
    await may_only_send(namesrv, "bob", "bob-secret", None)
    listed = ask("listUser", "-b", ours.address)
    assert all(f"{user}-secret" in listed for user in ("alice", "bob")), listed
    store = b"".join(path.read_bytes() for path in (ours.home / "store").rglob("*") if path.is_file())
    assert b"alice-secret" not in store and b"bob-secret" not in store


async def test_acl_import_takes_the_users_of_a_java_brokers_store_on_which_ours_runs(
    street: Street, eventually: Eventually, signing_mqadmin: Driver, tmp_path: Path
) -> None:
    pytest.importorskip("rocksdict", reason="rocksdict is not installed: make install")
    namesrv = street.our_nameserver()
    java = street.java_broker("broker-j", namesrv, _JAVA_KEEPS)

    async def is_there() -> bool:
        return set(await brokers(namesrv)) == {"broker-j"}

    def ask(*words: str) -> str:
        return signing_mqadmin.ask_until_answered(*words, "-b", java.address, "-n", namesrv.address)

    await eventually(is_there, "the Java broker is registered")
    for user in ("alice", "bob"):
        ask("createUser", "-u", user, "-p", f"{user}-secret", "-t", "Normal")
    for action in (("Topic:Alices", "Pub"), ("Group:*", "Sub"), ("Topic:Al*", "Get,List")):
        ask("createAcl", "-s", "User:alice", "-r", action[0], "-a", action[1], "-d", "Allow", "-i", "127.0.0.0/8")
    assert "User:alice" in ask("listAcl")
    listed = ask("listUser")
    assert all(f"{user}-secret" in listed for user in ("alice", "bob")), listed
    java.kill()  # so users are in the database's log only
    (key := tmp_path / "password-key").write_text("k" * 64)
    key.chmod(0o600)
    store = java.home / "store"
    conf = {**_OURS_CHECKS, "storePathRootDir": store, "passwordKeyFile": key}
    ours = street.our_broker("broker-j", namesrv, conf)
    (tools := tmp_path / "tools.yml").write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")

    async def is_ours() -> bool:
        found = await brokers(namesrv)
        return any(ours.address in str(addresses) for addresses in found.values())

    await eventually(is_ours, "our broker is registered")
    words = ["acl", "import", str(store), "--namesrv", namesrv.address, "--credentials", str(tools)]
    assert await asyncio.to_thread(main, words) == 0
    await may_only_send(namesrv, "alice", "alice-secret", "Alices")
    await may_only_send(namesrv, "bob", "bob-secret", None)


async def may_only_send(namesrv: Node, user: str, secret: str, allowed: str | None) -> None:
    """Fails unless the user may send, with that secret only, and to the allowed topic only."""
    for topic in ("Alices", "Others"):
        async with Producer(namesrv.address, deadline_s=STRANGER_WAIT_S, credentials=Credentials(user, secret)) as one:
            if topic == allowed:
                await one.send(topic, b"x")
            else:
                with pytest.raises(LedgerMQError, match="permission"):
                    await one.send(topic, b"x")
    async with Producer(namesrv.address, deadline_s=STRANGER_WAIT_S, credentials=Credentials(user, "wrong")) as one:
        with pytest.raises(LedgerMQError, match="signature"):
            await one.send("Alices", b"x")
