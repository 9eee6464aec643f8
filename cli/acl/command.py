"""`ledgermq acl import PATH`: arguments and output. Secrets come from files, never from the command line."""

import argparse
import asyncio
import json
from pathlib import Path


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `acl import` to the parser."""
    acl = commands.add_parser("acl", help="users and policies").add_subparsers(metavar="VERB", required=True)
    verb = acl.add_parser("import", help="import the users of a RocketMQ broker on every master of a cluster")
    verb.add_argument("path", metavar="PATH", type=Path, help="plain_acl.yml of 4.x, or the root of a store of 5.x")
    verb.add_argument(
        "--namesrv", metavar="HOST:PORT", help="a nameserver of the cluster; without it the result is only shown"
    )
    help_text = "YAML with accessKey and secretKey of a super user, as mqadmin's tools.yml"
    verb.add_argument("--credentials", metavar="FILE", type=Path, help=help_text)
    verb.add_argument("--tls-trust", metavar="FILE", type=Path, help="use TLS and trust the authorities in this file")
    verb.set_defaults(run=_import)


def _import(arguments: argparse.Namespace) -> int:
    from cli.acl.files import read_credentials, read_plain_acl
    from cli.acl.importing import import_users
    from cli.acl.java_users import read_java_users
    from ledgermq.remoting.errors import TlsFileError
    from ledgermq.remoting.tls import ClientTls, ReloadedContext
    from node.errors import UsageError

    path = arguments.path
    accounts = read_java_users(path) if path.is_dir() else read_plain_acl(path)
    for sentence in accounts.left:
        print(f"not imported: {sentence}")
    if arguments.namesrv is None:
        for user, acl in accounts.users:
            shown = user.to_json(with_password=False)
            print(json.dumps(shown | ({} if acl is None else {"policies": acl.to_json()["policies"]})))
        return 0
    credentials = None if arguments.credentials is None else read_credentials(arguments.credentials)
    try:
        tls = None if arguments.tls_trust is None else ReloadedContext(ClientTls(trusted=arguments.tls_trust))
    except TlsFileError as error:
        raise UsageError(str(error)) from error
    asyncio.run(import_users(accounts, arguments.namesrv, print, credentials, tls))
    return 0
