"""From plain_acl.yml to users who may do just that, on a broker that takes TLS only and asks who everybody is."""

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.auth_settings import AuthSettings
from broker.state.users import Acl
from cli.acl.files import read_credentials, read_plain_acl
from cli.acl.importing import import_users
from cli.main import main
from ledgermq.client import Admin, Consumer, Credentials, LedgerMQError, Producer
from ledgermq.remoting.serving.listener import ListenerKeys
from ledgermq.remoting.tls import ClientTls, ReloadedContext, TlsMode
from ledgermq.remoting.tls_settings import TlsSettings
from nameserver.config import NameServerConfig
from nameserver.server import NameServer
from node.broker_assembly import Broker
from node.errors import CommandError, UsageError
from tests.broker.conftest import eventually, small_config
from tests.remoting.certificates import Identity, make_identity

PLAIN = """
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 0123456789
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - orders=PUB|SUB
  - returns=DENY
  groupPerms:
  - hidden=DENY
- accessKey: rocketmq2
  secretKey: abcdefgh
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""
ROOT = Credentials("root", "root-secret")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN)
    return path


def test_accounts_become_users_and_their_permissions_policies(plain: Path) -> None:
    found = read_plain_acl(plain)
    (normal, acl), (admin, nothing) = found.users
    assert (normal.name, normal.password, normal.is_super) == ("RocketMQ", "0123456789", False)
    assert (admin.is_super, nothing) == (True, None)
    assert isinstance(acl, Acl)
    listed = [
        (kind, str(entry.resource), " ".join(entry.actions), entry.decision)
        for kind, entries in acl.policies.items()
        for entry in entries
    ]
    assert listed == [
        ("Custom", "Topic:orders", "Pub Sub", "Allow"),
        ("Custom", "Topic:returns", "All", "Deny"),
        ("Custom", "Group:hidden", "All", "Deny"),
        ("Default", "Topic:*", "All", "Deny"),
        ("Default", "Group:*", "Sub", "Allow"),
    ]
    assert len(found.left) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the list of accounts is missing"),
        ("accounts: [{accessKey: a}]", "account 1 has no secretKey"),
        ("accounts: [{accessKey: a, secretKey: s, admin: perhaps}]", "admin is 'perhaps'"),
        ("accounts: [{accessKey: a, secretKey: s, topicPerms: [t=ALL]}]", "topicPerms of a: 'ALL' is not one of"),
        ("accounts: [{accessKey: a, secretKey: s, topicPerms: [t]}]", "'t' is not NAME=PERMISSION"),
        (
            "accounts: [{accessKey: a, secretKey: s, topicPerms: ['orders*=PUB']}]",
            "topicPerms of a: 'orders*' is not a valid name",
        ),
        (
            "accounts: [{accessKey: a, secretKey: s, groupPerms: ['* = SUB']}]",
            "groupPerms of a: '*' is not a valid name",
        ),
        ("accounts: [{accessKey: a, secretKey: s}, {accessKey: a, secretKey: s}]", "several accounts of a"),
        ("accounts: [", "cannot be parsed as YAML in line"),
        ("a: &x [1]\naccounts: [*x]", "cannot be parsed as YAML"),
        ("!!python/object/apply:os.getcwd []", "the list of accounts is missing"),
    ],
)
def test_what_is_no_plain_acl_is_refused_by_its_place(tmp_path: Path, text: str, problem: str) -> None:
    (path := tmp_path / "acl.yml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_plain_acl(path)
    assert problem in str(caught.value)


def test_without_a_nameserver_it_is_only_shown_and_without_secrets(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acl", "import", str(plain)]) == 0
    shown = capsys.readouterr().out
    assert "not imported: globalWhiteRemoteAddresses" in shown
    assert json.loads(shown.splitlines()[-1]) == {
        "userStatus": "enable",
        "userType": "Super",
        "username": "rocketmq2",
    }
    assert "0123456789" not in shown


def test_credentials_come_from_a_file_as_mqadmin_has_it(tmp_path: Path) -> None:
    (path := tmp_path / "tools.yml").write_text("accessKey: rocketmq2\nsecretKey: 12345678\n")
    assert read_credentials(path) == Credentials("rocketmq2", "12345678")
    path.write_text("accessKey: rocketmq2\n")
    with pytest.raises(UsageError, match="both accessKey and secretKey must be given"):
        read_credentials(path)


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "node")


@pytest.fixture
async def namesrv(tmp_path: Path, identity: Identity) -> AsyncIterator[str]:
    """A nameserver with one broker behind it; both take TLS only."""
    tls = TlsSettings(
        tls_mode=TlsMode.ENFORCING,
        tls_certificate=identity.certificate,
        tls_key=identity.key,
        tls_outgoing=True,
        tls_outgoing_trusted=identity.certificate,
    )
    first = json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key})
    auth = AuthSettings(authentication_enable=True, authorization_enable=True, first_user=first)
    kv = tmp_path / "kv.json"
    server = NameServer(NameServerConfig(listener=ListenerKeys(host="127.0.0.1"), kv_config_path=kv, tls=tls))
    await server.start()
    settings: dict[str, Any] = {"bindAddress": "127.0.0.1", "namesrv_addrs": (server.address,)}
    broker = Broker(small_config(tmp_path / "store", **settings, tls=tls, auth=auth))
    await broker.start()
    await eventually(lambda: "root" in broker.parts.context.state.users and server.table.group("b") is not None)
    yield server.address
    await broker.close()
    await server.close()


async def test_imported_users_may_do_what_the_file_allows(namesrv: str, plain: Path, identity: Identity) -> None:
    context = ssl.create_default_context(cafile=identity.certificate)
    source = ReloadedContext(ClientTls(trusted=identity.certificate))
    with pytest.raises(CommandError, match="check signature failed"):
        await import_users(read_plain_acl(plain), namesrv, print, Credentials("root", "wrong"), source)
    said: list[str] = []
    await import_users(read_plain_acl(plain), namesrv, said.append, ROOT, source)
    assert [line.split(": ")[1] for line in said] == ["RocketMQ (Normal) created", "rocketmq2 (Super) created"]
    said.clear()
    await import_users(read_plain_acl(plain), namesrv, said.append, ROOT, source)
    assert all(line.endswith("exists already, not changed") for line in said)

    user = Credentials("RocketMQ", "0123456789")
    async with Admin(namesrv, tls=context, credentials=Credentials("rocketmq2", "abcdefgh")) as admin:
        await admin.create_topic("orders", queue_count=1)
        await admin.create_topic("returns", queue_count=1)
    async with Producer(namesrv, tls=context, credentials=user, deadline_s=5) as producer:
        await producer.send("orders", b"one apple")
        with pytest.raises(LedgerMQError, match="no permission to access Topic:returns"):
            await producer.send("returns", b"one pear")
    async with Consumer(namesrv, "shop", "orders", tls=context, credentials=user) as consumer:
        async for message in consumer:
            assert message.body == b"one apple"
            break
