"""Users and policies in the store of a RocketMQ broker, with values as a 5.3.3 writes them (tests/mixed runs one)."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.state.users import Acl
from cli.acl.java_users import read_java_users
from cli.main import main
from node.errors import UsageError

USERS = {
    "alice": b'{"password":"alice-secret","subjectType":1,"userStatus":1,"userType":2,"username":"alice"}',
    "root": b'{"password":"root-secret","subjectType":1,"userStatus":2,"userType":1,"username":"root"}',
}
ALICE = (
    b'{"policies":[{"entries":[{"actions":[3,4],"decision":1,"environment":{"sourceIps":["10.0.0.0/8"]},"resource":'
    b'{"resourceName":"Alices","resourcePattern":2,"resourceType":4}},'
    b'{"actions":[1],"decision":2,"resource":{"resourceName":"hidden-","resourcePattern":3,"resourceType":5}},'
    b'{"actions":[8],"decision":1,"resource":{"resourcePattern":1,"resourceType":2}}],"policyType":1},'
    b'{"entries":[{"actions":[9],"decision":1,"resource":{"resourcePattern":1,"resourceType":1}}],"policyType":2}],'
    b'"subject":{"subjectType":1,"username":"alice"}}'
)


def make_database(path: Path, rows: Mapping[str, bytes]) -> None:
    rocks = pytest.importorskip("rocksdict", reason="rocksdict is not installed: make install")
    path.mkdir(parents=True)
    database = rocks.Rdict(str(path), rocks.Options(raw_mode=True))
    for key, value in rows.items():
        database[key.encode()] = value
    database.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_database(tmp_path / "config" / "users", USERS)
    make_database(tmp_path / "config" / "acls", {"User:alice": ALICE, "User:bob": ALICE})
    return tmp_path


def test_users_and_policies_are_read(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    found = read_java_users(store)
    (alice, acl), (root, nothing) = found.users
    assert (alice.name, alice.password, alice.is_super, alice.status) == ("alice", "alice-secret", False, "enable")
    assert (root.name, root.is_super, root.status, nothing) == ("root", True, "disable", None)
    assert isinstance(acl, Acl)
    listed = [
        (kind, str(entry.resource), " ".join(entry.actions), entry.decision, entry.sources)
        for kind, entries in acl.policies.items()
        for entry in entries
    ]
    assert listed == [
        ("Custom", "Topic:Alices", "Pub Sub", "Allow", ("10.0.0.0/8",)),
        ("Custom", "Group:hidden-*", "All", "Deny", ()),
        ("Custom", "Cluster:*", "Get", "Allow", ()),
        ("Default", "*", "List", "Allow", ()),
    ]
    assert found.left == ("policies of User:bob, who is no user",)
    assert all(path.read_bytes() == data for path, data in before.items() if path.name != "LOG")


def test_they_are_shown_without_secrets(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acl", "import", str(store)]) == 0
    shown = capsys.readouterr().out
    assert '"username": "alice"' in shown and "Topic:Alices" in shown and "secret" not in shown


@pytest.mark.parametrize(
    "value", [b"[]", b"{}", b"{", b'{"password":"x","userType":9}', b'{"password":" "}', b'{"password":5}']
)
def test_what_is_not_understood_is_named(tmp_path: Path, value: bytes) -> None:
    make_database(tmp_path / "config" / "users", {"alice": value})
    with pytest.raises(UsageError, match="the entry of 'alice' is not understood"):
        read_java_users(tmp_path)


def test_a_store_without_users_a_damaged_database_and_a_missing_library_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="has no database of users"):
        read_java_users(tmp_path)
    (users := tmp_path / "config" / "users").mkdir(parents=True)
    (users / "CURRENT").write_text("MANIFEST-000001\n")
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(UsageError, match=r"install ledgermq-server\[rocksdb\]"):
        read_java_users(tmp_path)
    monkeypatch.undo()
    pytest.importorskip("rocksdict", reason="rocksdict is not installed: make install")
    with pytest.raises(UsageError, match="MANIFEST"):
        read_java_users(tmp_path)
