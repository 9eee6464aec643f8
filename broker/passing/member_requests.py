"""The leader's end: takes the greetings of members that follow, and the requests that they pass on.

GREETING {nonce} --> {nonce}        then every request on this connection has a claim (`broker.passing.claims`)

With the first claim that has a valid seal, the connection itself leaves the quotas: what is passed on counts for the
clients. Without a secret nothing is proven, and all that is passed on counts for the member's address.

Requests on a connection have rising numbers (opaques). One that arrives a second time is not served again.
"""

from collections.abc import Callable, Mapping
from typing import Final

from broker.passing.claims import VERSION, ClaimChecks, host_of, read_nonce
from broker.passing.postponed import Postponed
from broker.passing.relayed import RelayedClient
from broker.passing.runs import SENDS, serve_run
from broker.role import Role
from broker.subsystem import Serve
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import long
from ledgermq.remoting.connection import Connection, RequestHandler
from ledgermq.remoting.outgoing_requests import OPAQUE_MAX
from ledgermq.remoting.proof import Secrets, make_nonce
from ledgermq.remoting.refusal import Cause, Refusal

GREETING: Final = 53002
"""`nonce`: 32 random bytes in hexadecimal; `version`: `claims.VERSION`; `generation`: the only one in which clients'
requests on this connection are served, or 0. The answer has the leader's nonce and version, the same generation, and
`runs` if it takes `SENDS`: one of an earlier release has neither of these."""

CLIENT_GONE: Final = 53003
"""One-way: the connection of the client in the claim has ended."""

KEPT_MESSAGES: Final = 53005
"""A member fetches messages that compaction has kept here: `topic`, `queueId`, `offset`, a queue offset. The answer:
the records, `nextOffset` and `edition`."""

GROUP: Final = 53006
"""A member asks how a consumer group consumes: `consumerGroup`. The answer is that of 203. A member that comes back has
forgotten the groups of its clients, which send a heartbeat every 30 s only."""

STAND_BACK: Final = 53007
"""A master that is back asks a slave what it delivered in its place, and ends that: `from`, a number of entries. The
answer: some entries as JSON, and `next`, from where to ask again, or -1."""

_CLIENTS_MAX: Final = 20_000
"""Clients known behind one member; the one that has been known for longest is forgotten first."""


class MemberRequests:
    """Serves the other members of the cluster: their greetings, and their own requests.

    Args:
        handler: returns what serves all requests.
        own: functions that serve members' own requests, by code: `KEPT_MESSAGES`, `GROUP`, `STAND_BACK`, `LOCKS`.

    Attributes:
        secrets: of the cluster: who passes requests on must have one of them; none: no seal is asked for.
        trusts_all: without a secret, believe members on other machines, too.
        postponed: one-way requests that wait until a quota of their client is paid off.
        members: the connections on which requests are passed on.
    """

    def __init__(self, role: Role, handler: Callable[[], RequestHandler], own: Mapping[int, Serve]) -> None:
        self._role = role
        self.own = own
        self._handler = handler
        self.secrets: Secrets = ()
        self.trusts_all = False
        self.postponed = Postponed()
        self.members: set[Connection] = set()

    def requests(self) -> Mapping[int, Serve]:
        """Return the handlers by request code."""
        return {GREETING: self.greet}

    def greet(self, connection: Connection, command: Command) -> None:
        """Greet a member: from now on, requests on this connection are those of its clients.

        Raises:
            Refusal: NO_PERMISSION, members at that address are not believed; NOT_SUPPORTED, the member passes
                requests on in another version of this protocol.
        """
        if not (self.secrets or connection.is_local or self.trusts_all):
            remark = "without a secret, requests are only passed on between members on one machine"
            raise Refusal(Cause.NO_PERMISSION, f"{remark} (dLegerPeerSecretFile or haPeerSecretFile, insecurePeers)")
        if (version := command.ext.get("version", "1")) != VERSION:
            remark = f"requests are passed on by version {version[:20]!r}, this member takes version {VERSION!r}"
            raise Refusal(Cause.NOT_SUPPORTED, f"{remark}: all members must run the same release")
        theirs, own = read_nonce(command.ext.get("nonce", "")), make_nonce()
        generation = long(command.ext, "generation", 0)
        checks, handler = ClaimChecks(self.secrets, own, theirs), self._handler()
        handler.on_closed(connection)  # ends what it was before as a client, which the new handler does not know
        self.members.add(connection)
        connection.serve_by(_PassedOn(self, checks, self._role, handler, command.opaque, generation))
        more = {"runs": "true", "generation": str(generation)}
        connection.respond(command, ResponseCode.SUCCESS, {"nonce": own.hex(), "version": VERSION} | more)

    def answer_member(self, connection: Connection, command: Command) -> None:
        """Answer a request that a member makes for itself.

        Raises:
            Refusal: NOT_SUPPORTED, this node has no members; else as the function that serves it.
        """
        if self._role.is_alone:
            raise Refusal(Cause.NOT_SUPPORTED, "this broker has no other members")
        self.own[command.code](connection, command)


class _PassedOn:
    """Serves the requests that one member passes on.

    Args:
        last: the number of its greeting.
        generation: in which clients' requests are served; 0: in each. What has waited in a socket, or on the way, while
            this node was deposed and elected again may have been passed on to another leader meanwhile.
    """

    def __init__(
        self,
        requests: MemberRequests,
        checks: ClaimChecks,
        role: Role,
        handler: RequestHandler,
        last: int,
        generation: int,
    ) -> None:
        self._requests = requests
        self._checks = checks
        self._role = role
        self._handler = handler
        self._last = last
        self._generation = generation
        self._is_exempt = False
        self._clients: dict[str, RelayedClient] = {}

    def on_connected(self, connection: Connection) -> None:
        """Do nothing: the connection was made before."""

    def on_request(self, connection: Connection, command: Command) -> None:
        """Serve a request as the client's own, or refuse it before anything of it is placed.

        Raises:
            Refusal: NOT_LEADER, another node leads, or none: nothing was placed; or as for the client itself.
        """
        if not self._is_next(command.opaque):
            if not command.is_oneway:
                connection.answer(())  # the first one has an answer
            return
        if command.code == GREETING:
            self.on_closed(connection)  # the member tells again which clients it has
            self._requests.greet(connection, command)
            return
        try:
            address = self._checks.client_of(command)
        except Refusal:
            connection.abort("a request was passed on without a valid claim")  # no later one on it can be valid
            raise
        if self._checks.is_proven and not self._is_exempt:
            self._is_exempt = True
            connection.leave_quotas()
        if command.code == CLIENT_GONE:
            self._forget(address)
            return
        if command.code in self._requests.own:
            self._requests.answer_member(connection, command)
            return
        client = self._client(connection, address)
        is_leader = self._role.writable or self._role.is_elected
        if not is_leader or self._generation not in (0, self._role.generation):
            raise not_leader(self._role)
        if not client.is_throttled:
            if command.code == SENDS:
                serve_run(client, self._handler, command)
            else:
                self._handler.on_request(client, command)
        elif command.is_oneway:
            self._requests.postponed.add(client, command)
        else:  # the member reads on for its other clients
            raise Refusal(Cause.BUSY, "[OVERLOAD]system busy, a quota of this client is used up", retry_after_ms=1000)

    def _is_next(self, number: int) -> bool:
        """Note the number of a request; return whether it is higher than the last one.

        The largest number is followed by 0.
        """
        is_next = 0 < (number - self._last) & OPAQUE_MAX <= OPAQUE_MAX // 2
        if is_next:
            self._last = number
        return is_next

    def on_closed(self, connection: Connection) -> None:
        """Remove the clients behind the member, which cannot be reached any more."""
        self._requests.members.discard(connection)
        for address in list(self._clients):
            self._forget(address)

    def _forget(self, address: str) -> None:
        client = self._clients.pop(address, None)
        if client is not None:
            self._requests.postponed.forget(client)
            self._handler.on_closed(client)
            client.close()

    def _client(self, carrier: Connection, address: str) -> RelayedClient:
        client = self._clients.get(address)
        if client is None or client.is_closed:
            client = RelayedClient(carrier, self._handler, host_of(address))
            if len(self._clients) >= _CLIENTS_MAX:
                self._forget(next(iter(self._clients)))
            self._clients[address] = client
        return client


def not_leader(role: Role) -> Refusal:
    """Return the refusal for another member: this node does not lead, and nothing was placed."""
    refusal = role.refusal
    remark, hint = ("this node leads", None) if refusal is None else (refusal.remark, refusal.leader_hint)
    return Refusal(Cause.NOT_LEADER, remark, retry_after_ms=100, leader_hint=hint)
