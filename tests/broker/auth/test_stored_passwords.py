"""Passwords as they are stored: not readable in the log or in files, opened by each known secret, taken over."""

import dataclasses
import json
from pathlib import Path

import pytest

from broker.auth.own_key import KEY_FILE
from broker.auth.password_vault import PasswordVault
from broker.auth_settings import AuthSettings, WithoutSecret
from broker.state.users import User, UserChange
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.signature import Credentials
from tests.broker.auth.test_requests import ALICE, ASKING, ROOT, ask, done, make_alice, read, rooted
from tests.broker.conftest import Desk, eventually, small_config

OLD, NEW = b"o" * 32, b"n" * 32
PLAIN = ASKING["auth"]
SEALING = {"auth": dataclasses.replace(PLAIN, password_secrets=(OLD,))}
sealing = pytest.mark.parametrize("desk", [SEALING], indirect=True)


def _found_in_files(root: Path, text: bytes) -> list[str]:
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) > 3
    return [str(path.relative_to(root)) for path in files if text in path.read_bytes()]


async def _restart(desk: Desk, auth: AuthSettings) -> Desk:
    await desk.stop()
    again = Desk(small_config(Path(desk.config.store.root), auth=auth))
    await again.start()
    return again


def test_a_sealed_password_opens_with_the_secret_and_for_its_user_only() -> None:
    vault = PasswordVault([OLD])
    alice = vault.seal(User(name="alice", password="geheim\ud800"))
    assert (alice.password, vault.password_of(alice)) == ("", "geheim\ud800")
    assert vault.seal(alice) == alice == User.from_json(json.loads(json.dumps(alice.to_json())))
    assert "geheim" not in str(alice.to_json())
    assert PasswordVault([NEW]).password_of(alice) is None
    assert PasswordVault([NEW]).seal(alice) == alice
    assert PasswordVault([]).password_of(alice) is None
    assert vault.password_of(dataclasses.replace(alice, name="mallory")) is None
    for wrong in ("x", "AAAA", alice.sealed[:-4], alice.sealed.swapcase()):
        assert vault.password_of(dataclasses.replace(alice, sealed=wrong)) is None
    both = PasswordVault([NEW, OLD])
    assert both.password_of(alice) == "geheim\ud800"
    assert PasswordVault([NEW]).password_of(both.seal(alice)) == "geheim\ud800"


def test_a_change_without_a_password_keeps_the_sealed_one_and_a_new_one_replaces_it() -> None:
    alice = PasswordVault([OLD]).seal(User(name="alice", password="first"))
    assert UserChange(status="disable").update(alice).sealed == alice.sealed
    changed = UserChange(password="second").update(alice)
    assert (changed.password, changed.sealed) == ("second", "")


@sealing
async def test_passwords_are_nowhere_in_the_log_or_in_files(desk: Desk) -> None:
    client = await rooted(desk)
    await make_alice(client)
    await done(client, RequestCode.AUTH_UPDATE_USER, {"username": "alice"}, {"password": "another-secret"})
    second = Credentials("alice", "another-secret")
    assert (await ask(client, second, RequestCode.CHECK_CLIENT_CONFIG)).code != 16
    assert (await ask(client, ALICE, RequestCode.CHECK_CLIENT_CONFIG)).remark == "check signature failed."
    shown = read((await done(client, RequestCode.AUTH_GET_USER, {"username": "alice"})).body)
    assert shown["password"] == "another-secret"  # to super users, who copy users with it
    assert "sealedPassword" not in shown
    root = Path(desk.config.store.root)
    again = await _restart(desk, SEALING["auth"])
    try:
        for secret in (b"root-secret", b"alice-secret", b"another-secret"):
            assert _found_in_files(root, secret) == []
        assert (await ask(again.client(), second, RequestCode.CHECK_CLIENT_CONFIG)).code != 16
    finally:
        await again.stop(save_tables=False)


@pytest.mark.parametrize("desk", [ASKING], indirect=True)
async def test_plain_passwords_are_sealed_by_the_next_leader_and_a_secret_can_be_replaced(desk: Desk) -> None:
    await make_alice(await rooted(desk))
    table = Path(desk.config.store.root) / "config" / "ledgermqAuth.json"
    for secrets in ((OLD,), (NEW, OLD), (NEW,)):
        desk = await _restart(desk, dataclasses.replace(PLAIN, password_secrets=secrets))
        users, first = desk.parts.context.state.users, PasswordVault(secrets[:1])
        await eventually(lambda: all(first.password_of(user) for user in users.values()), "sealed")  # noqa: B023  # done before the loop goes on
        assert (await ask(desk.client(), ALICE, RequestCode.CHECK_CLIENT_CONFIG)).code != 16
    await desk.stop()
    assert b"alice-secret" not in table.read_bytes()


@sealing
async def test_without_the_secret_nobody_is_let_in_by_an_empty_password(desk: Desk) -> None:
    await make_alice(await rooted(desk))
    again = await _restart(desk, dataclasses.replace(PLAIN, password_secrets=(NEW,)))
    try:
        for who in (ALICE, ROOT, Credentials("alice", "")):
            answer = await ask(again.client(), who, RequestCode.CHECK_CLIENT_CONFIG)
            assert (answer.code, answer.remark) == (16, "check signature failed.")
    finally:
        await again.stop(save_tables=False)


OWN_KEY = {"auth": dataclasses.replace(PLAIN, without_secret=WithoutSecret.OWN_KEY)}


@pytest.mark.parametrize("desk", [OWN_KEY], indirect=True)
async def test_a_broker_without_replicas_makes_a_key_when_it_first_needs_one(desk: Desk) -> None:
    root = Path(desk.config.store.root)
    await make_alice(await rooted(desk))
    made = (root / KEY_FILE).read_bytes()
    assert (root / KEY_FILE).stat().st_mode & 0o777 == 0o600
    again = await _restart(desk, desk.config.auth)
    try:
        assert _found_in_files(root, b"alice-secret") == []
        assert (await ask(again.client(), ALICE, RequestCode.CHECK_CLIENT_CONFIG)).code != 16
        assert (root / KEY_FILE).read_bytes() == made
    finally:
        await again.stop(save_tables=False)


@pytest.mark.parametrize("desk", [OWN_KEY], indirect=True)
async def test_the_own_key_opens_passwords_until_a_given_secret_has_sealed_them(desk: Desk) -> None:
    await make_alice(await rooted(desk))
    again = await _restart(desk, dataclasses.replace(PLAIN, password_secrets=(NEW,)))
    try:
        users, first = again.parts.context.state.users, PasswordVault([NEW])
        await eventually(lambda: all(first.password_of(user) for user in users.values()), "sealed")
        assert (await ask(again.client(), ALICE, RequestCode.CHECK_CLIENT_CONFIG)).code != 16
    finally:
        await again.stop(save_tables=False)


@pytest.mark.parametrize("desk", [{"auth": AuthSettings(without_secret=WithoutSecret.OWN_KEY)}], indirect=True)
async def test_no_key_is_made_without_users(desk: Desk) -> None:
    assert not (Path(desk.config.store.root) / KEY_FILE).exists()
