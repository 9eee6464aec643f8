"""TLS by RocketMQ's names, in either file."""

import asyncio
from pathlib import Path

import pytest

from ledgermq.remoting.tls import ClientAuth, ClientTls, TlsMode
from node.config import load_broker_config, load_nameserver_config
from node.properties import ConfigError

HERE = ["bindAddress=127.0.0.1"]
FILES = ["tls.server.certPath=/etc/c.pem", "tls.server.keyPath=/etc/c.key"]


def test_without_a_certificate_tls_is_disabled_and_outgoing_connections_are_plain() -> None:
    tls = load_broker_config(None, HERE).broker.tls
    assert (tls.mode, tls.incoming(), tls.outgoing()) == (TlsMode.DISABLED, None, None)


def test_with_a_certificate_both_kinds_of_connections_are_taken_unless_said_otherwise() -> None:
    tls = load_nameserver_config(None, HERE + FILES).tls
    assert (tls.mode, tls.takes_plain, tls.tls_key) == (TlsMode.PERMISSIVE, True, Path("/etc/c.key"))
    assert not load_nameserver_config(None, [*HERE, *FILES, "tls.server.mode=enforcing"]).tls.takes_plain


async def test_a_test_certificate_lets_a_client_in_that_verifies_nobody() -> None:
    config = load_broker_config(None, [*HERE, "tls.test.mode.enable=true"])
    tls = config.broker.tls
    assert (tls.mode, tls.takes_plain) == (TlsMode.PERMISSIVE, True)
    assert any("WARNING: tls.test.mode.enable=true" in notice for notice in config.notices)
    incoming = tls.incoming()
    assert incoming is not None
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=incoming())
    unverified = ClientTls(verify=False, check_host=False).build()
    try:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=unverified)
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        writer.close()
    finally:
        server.close()


def test_servers_are_verified_unless_that_is_switched_off_which_is_said() -> None:
    config = load_broker_config(None, [*HERE, "useTLS=true", "tls.client.authServer=false"])
    assert not config.broker.tls.tls_outgoing_verify
    assert any("WARNING: tls.client.authServer=false" in notice for notice in config.notices)
    assert load_broker_config(None, [*HERE, "useTLS=true"]).broker.tls.tls_outgoing_verify


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["tls.server.mode=enforcing"], "key 'tls.server.certPath' is needed for tls.server.mode enforcing"),
        (["tls.server.certPath=/c.pem"], "key 'tls.server.keyPath' goes with tls.server.certPath: both or none"),
        (["tls.client.keyPath=/c.key"], "key 'tls.client.keyPath' goes with tls.client.certPath: both or none"),
        ([*FILES, "tls.server.need.client.auth=require"], "key 'tls.server.trustCertPath' is needed"),
        (["tls.server.mode=on"], "key 'tls.server.mode' is 'on', not one of disabled, permissive, enforcing"),
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(None, HERE + words)
    assert problem in str(caught.value)


def test_passwords_are_never_shown() -> None:
    words = [
        *FILES,
        "tls.server.keyPassword=sesame",
        "tls.client.keyPassword=sesame",
        "tls.server.need.client.auth=none",
    ]
    config = load_broker_config(None, HERE + words)
    assert config.broker.tls.tls_client_auth is ClientAuth.NONE
    assert config.broker.properties["tls.server.keyPassword"] == "***"
    assert config.broker.properties["tls.server.mode"] == "permissive"
    assert "sesame" not in repr(config)
    assert "sesame" not in str(config.notices)
