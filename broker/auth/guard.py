"""The guard: authenticates and authorizes each request before it is served. Pure apart from the given look-ups.

Source: apache/rocketmq `auth/.../authentication/chain/DefaultAuthenticationHandler.java`, and the builder of its
context; `broker/.../auth/pipeline/{AuthenticationPipeline,AuthorizationPipeline}.java`.
"""

import hmac
import logging
import secrets
from collections.abc import Callable
from typing import Final

from broker.auth.access import PUB, TopicAt, accesses, of_topic
from broker.auth.password_vault import PasswordVault
from broker.auth.policy import check
from broker.auth_settings import AuthSettings
from broker.state.users import DISABLE, Acl, User, refused, subject_of
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.signature import ACCESS_KEY, SIGNATURE, SIGNED_CODE, keyed_signature, signature, strict_key

log = logging.getLogger(__name__)

FindUser = Callable[[str], User | None]
FindAcl = Callable[[str], Acl | None]

_V4_9_3: Final = 399
_NO_PASSWORD: Final = secrets.token_hex(16)
_NO_SIGNATURE: Final = secrets.token_hex(32)
_UNSIGNED_UNTIL_4_9_3: Final = "_UNIQUE_KEY_QUERY"


class Guard:
    """Checks every request.

    Args:
        cluster: the name of the cluster, the resource of requests without topic and group.
        find_user: finds a user by name.
        find_acl: finds policies by subject.
        topic_at: see `access.TopicAt`.
        vault: opens passwords.
    """

    def __init__(
        self,
        settings: AuthSettings,
        cluster: str,
        find_user: FindUser,
        find_acl: FindAcl,
        topic_at: TopicAt,
        vault: PasswordVault,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._find_user = find_user
        self._find_acl = find_acl
        self._topic_at = topic_at
        self._vault = vault
        self._unreadable = RateLimitedLog(log)

    @property
    def is_needed(self) -> bool:
        """Whether authentication or authorization is enabled."""
        return self._settings.authentication_enable

    def check(self, command: Command, source: str) -> str | None:
        """Check the request of a client at address `source`.

        Returns:
            The name of the user who signed it; None where its code needs no user.

        Raises:
            Refusal: NO_PERMISSION, with RocketMQ's remark: the request is not allowed.
        """
        settings = self._settings
        user = None
        if command.code not in settings.authentication_whitelist:
            user = self._authenticate(command)
        if settings.authorization_enable and command.code not in settings.authorization_whitelist:
            if user is None:
                raise refused("Authorization failed. Please verify your access rights and try again.")
            if not user.is_super:
                touched = accesses(command, self._cluster, self._topic_at)
                check(user, self._find_acl(subject_of(user.name)), touched, source)
        return user.name if user is not None else None

    def may_publish(self, user_name: str | None, topic: str, source: str) -> bool:
        """Return whether a user may send to a topic; `user_name` is None for a client whose heartbeats need no user."""
        if not self._settings.authorization_enable:
            return True
        if user_name is None:
            return RequestCode.HEART_BEAT in self._settings.authentication_whitelist
        user = self._find_user(user_name)
        if user is None or user.status == DISABLE or user.is_super:
            return user is not None and user.is_super and user.status != DISABLE
        try:
            check(user, self._find_acl(subject_of(user_name)), [of_topic(topic, PUB)], source)
        except Refusal:
            return False
        return True

    def is_super(self, command: Command) -> bool:
        """Return whether the request has the valid signature of a super user, also where its code is white-listed."""
        if not self._settings.authentication_enable:
            return False
        try:
            return self._authenticate(command).is_super
        except Refusal:
            return False

    def check_may_change(self, command: Command) -> None:
        """Check a change of users or policies, which only super users may make while there is no authorization.

        Without authentication everybody may.

        Raises:
            Refusal: NO_PERMISSION.
        """
        settings = self._settings
        if settings.authentication_enable and not settings.authorization_enable and not self.is_super(command):
            raise refused("users and policies are shown to and changed by super users only")

    def check_super(self, command: Command, doing: str) -> None:
        """Check that a super user asks, if authentication is enabled; `doing` names the action in the remark.

        Raises:
            Refusal: SYSTEM_ERROR, as RocketMQ answers.
        """
        if self._settings.authentication_enable and not self.is_super(command):
            raise Refusal(Cause.SYSTEM_ERROR, f"The super user can only be {doing} by super user")

    def _authenticate(self, command: Command) -> User:
        fields = command.ext
        name = fields.get(ACCESS_KEY)
        if not name:
            raise refused("username cannot be null.")
        user = self._find_user(name)
        # an unknown user costs as much, and is answered as a wrong signature: names cannot be found out
        password = None if user is None else self._vault.password_of(user)
        if user is not None and password is None:
            self._unreadable.warning("the password of user %r is sealed by a secret that is not known here", name)
        right = _right_signature(command, password or _NO_PASSWORD)
        given = fields.get(SIGNATURE, "")
        is_right = hmac.compare_digest(right.encode(), given.encode("utf-8", "surrogatepass"))
        if user is None or password is None or not is_right:
            raise refused("check signature failed.")
        if user.status == DISABLE:
            raise refused(f"User:{name} is disabled.")
        return user


def _right_signature(command: Command, password: str) -> str:
    """Return the signature that a request must have, of the kind that its fields show.

    With another request code than it was made for, no signature is right.
    """
    fields = command.ext
    if SIGNED_CODE in fields:
        made = keyed_signature(fields, command.body, strict_key(password))
        return made if fields[SIGNED_CODE] == str(command.code) else _NO_SIGNATURE
    left_out = _UNSIGNED_UNTIL_4_9_3 if command.version <= _V4_9_3 else SIGNATURE
    return signature(fields, command.body, password, left_out=left_out)
