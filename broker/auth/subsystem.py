"""Authentication and authorization of requests, and the requests that change users and policies."""

import logging
from collections.abc import Mapping

from broker.auth.guard import Guard
from broker.auth.own_key import known_secrets, made_secrets
from broker.auth.password_vault import PasswordVault
from broker.auth.requests import AuthRequests
from broker.auth_settings import WithoutSecret
from broker.context import BrokerContext
from broker.state import names
from broker.subsystem import Serve, Subsystem
from ledgermq.message.properties import REAL_TOPIC
from ledgermq.message.record import decode_record
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.refusal import Refusal

log = logging.getLogger(__name__)


class AuthSubsystem(Subsystem):
    """Checks requests, and serves those about users and policies.

    Attributes:
        guard: checks each request before it is served.
    """

    def __init__(self, context: BrokerContext) -> None:
        config, state = context.config, context.state
        self._store = context.store
        self._super_users = config.auth.super_users()
        self._forwarding = context.forwarding
        auth, root = config.auth, config.store.folders.root
        secrets = auth.password_secrets
        if secrets or auth.without_secret is WithoutSecret.OWN_KEY:
            secrets += known_secrets(root)  # opens what was sealed before there was another secret
        vault = PasswordVault(secrets, made_secrets(auth.without_secret, root))
        self.guard = Guard(config.auth, context.identity.cluster, state.user, state.acl, self.topic_at, vault)
        self._requests = AuthRequests(
            state, context.role, self.guard, vault, context.appender.propose, context.loop.time
        )

    def requests(self) -> Mapping[int, Serve]:
        """See `Subsystem`. Changes are forwarded to the leader, since tools send them to each member of a cluster."""
        code, own, by_leader = RequestCode, self._requests, self._forwarding.by_leader
        return {
            code.AUTH_CREATE_USER: by_leader(own.create_user),
            code.AUTH_UPDATE_USER: by_leader(own.update_user),
            code.AUTH_DELETE_USER: by_leader(own.delete_user),
            code.AUTH_GET_USER: own.get_user,
            code.AUTH_LIST_USER: own.list_users,
            code.AUTH_CREATE_ACL: by_leader(own.put_acl),
            code.AUTH_UPDATE_ACL: by_leader(own.put_acl),
            code.AUTH_DELETE_ACL: by_leader(own.delete_acl),
            code.AUTH_GET_ACL: own.get_acl,
            code.AUTH_LIST_ACL: own.list_acls,
        }

    def lead(self) -> None:
        """Create the users of the configuration that do not exist, and seal passwords that are not."""
        try:
            self._requests.make_users(self._super_users)
            self._requests.seal_users()
        except Refusal as refusal:
            log.warning("users are not made, and passwords stay in plain text: %s", refusal.remark)

    def topic_at(self, physical_offset: int) -> str | None:
        """Return the topic of the record at a physical offset (the real one if it waits); None without a record."""
        found = self._store.reader.look_up(physical_offset)
        if found is None:
            return None
        record = decode_record(found)
        waits = record.topic in names.WAITING_TOPICS or record.topic == names.CHECKED_OUT_TOPIC
        return record.property_map.get(REAL_TOPIC, record.topic) if waits else record.topic
