"""Sends users and policies to every master of a cluster. A user that exists already is not changed."""

import json
from collections.abc import Callable

from broker.auth.plain_acl import PlainAclUsers
from broker.state.users import Acl, User
from cli.cluster.roles import ask_brokers, request
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.signature import Credentials
from ledgermq.remoting.tls import ContextSource
from node.errors import CommandError


async def import_users(
    accounts: PlainAclUsers,
    namesrv: str,
    say: Callable[[str], None],
    credentials: Credentials | None = None,
    tls: ContextSource | None = None,
) -> None:
    """Create the users and their policies on every master that the nameserver knows.

    Raises:
        CommandError: a broker does not answer, or refuses; what was created before remains.
    """
    client = RemotingClient(credentials=credentials, tls=tls)
    try:
        masters = (await ask_brokers(client, namesrv)).masters()
        if not masters:
            raise CommandError(f"nameserver {namesrv} knows no master")
        for master in masters:
            for user, acl in accounts.users:
                made = await _make(client, master, user, acl)
                say(f"{master}: {user.name} ({user.kind}) {'created' if made else 'exists already, not changed'}")
    finally:
        await client.close()


async def _make(client: RemotingClient, master: str, user: User, acl: Acl | None) -> bool:
    fields = {"username": user.name}
    if (await request(client, master, Command(RequestCode.AUTH_GET_USER, ext=fields))).body:
        return False
    await request(client, master, Command(RequestCode.AUTH_CREATE_USER, ext=fields, body=_body(user.to_json())))
    if acl is not None:
        subject = {"subject": acl.subject}
        await request(client, master, Command(RequestCode.AUTH_CREATE_ACL, ext=subject, body=_body(acl.to_json())))
    return True


def _body(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
