"""The election rule: which registration gets which broker id.

    term of the claim     id 0 is given when
    t > 0 (our brokers)   no leader of the broker name has claimed it with a higher term, and no other member has it
                          with the same term; or the claimant already has it
    0 (Java's brokers)    no live member has it with a term, and RocketMQ's own rule agrees: the holder's state
                          version is not above the claimant's

A refused claimant keeps the id that it had. Terms outlive the members by a minute (`TermMemory`), so a leader that was
cut off never takes the route from its successor, not even while that one is away. A group that was wiped and starts
again from term 1 is accepted a minute after the last member of the old term was heard. A follower's term keeps a term
in memory and never raises it: a member that was cut off may have entered a term without a leader, while the leader of a
lower term still has a majority. Ids other than 0 carry no promise and follow RocketMQ's rule.

Source: for term 0, apache/rocketmq `RouteInfoManager.registerBroker` (5.3).
"""

from collections.abc import Iterable

from ledgermq.remoting.route import LEADER_ID
from nameserver.core.model import BrokerGroup, BrokerMember, Registration

TERM_MEMORY_MS = 60_000


class RegistrationRefusedError(Exception):
    """A claim was refused: another member keeps the id, or no member gets it. The text says why, with the terms.

    `holder` is the address that keeps id 0, if any. `is_silent`: RocketMQ's own rule refused, and its brokers expect an
    answer without an error.
    """

    def __init__(self, detail: str, holder: str | None = None, *, is_silent: bool = False) -> None:
        super().__init__(detail)
        self.holder = holder
        self.is_silent = is_silent


class TermMemory:
    """The highest term with which id 0 was taken, for each broker name.

    It is kept while a member of that term or a later one is registered, and for some time after. Members of lower terms
    do not keep it: otherwise a group whose disks were wiped, and which starts again from term 1, would be refused for
    ever.
    """

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}
        self._absent_since: dict[str, int] = {}

    def highest(self, broker_name: str) -> int:
        """Return the term; 0 when there was no leader with a term, or the term is no longer kept."""
        return self._highest.get(broker_name, 0)

    def observe(self, broker_name: str, leader_term: int, member_terms: Iterable[int], now_ms: int) -> None:
        """Note a change of members: the term of the holder of id 0 (0 without one), and the terms of all members."""
        if leader_term > self.highest(broker_name):
            self._highest[broker_name] = leader_term
        if max(member_terms, default=0) >= self.highest(broker_name):
            self._absent_since.pop(broker_name, None)
        else:
            self._absent_since.setdefault(broker_name, now_ms)

    def expire(self, now_ms: int) -> None:
        """Forget the terms whose last member left longer ago than `TERM_MEMORY_MS`."""
        for name in [name for name, since in self._absent_since.items() if now_ms - since > TERM_MEMORY_MS]:
            del self._absent_since[name], self._highest[name]


def check_claim(group: BrokerGroup, claim: Registration, highest_term: int) -> None:
    """Decide whether `claim` gets its broker id in `group`.

    Args:
        group: the members before the claim.
        claim: the registration.
        highest_term: the highest term with which id 0 of this broker name was taken.

    Raises:
        RegistrationRefusedError: it does not get it.
    """
    holder = group.members.get(claim.broker_id)
    if holder is not None and holder.address == claim.address:
        return
    if claim.broker_id == LEADER_ID and claim.term > 0:
        _check_term(claim, holder, highest_term)
    elif holder is not None:
        _check_without_term(claim, holder)


def _check_term(claim: Registration, holder: BrokerMember | None, highest_term: int) -> None:
    if claim.term < highest_term:
        detail = (
            f"{_who(claim)} claims broker id 0 in term {claim.term}, but this nameserver has seen term {highest_term}"
        )
        raise RegistrationRefusedError(detail, holder.address if holder else None)
    if holder is not None and holder.registration.term == claim.term:
        detail = (
            f"{_who(claim)} claims broker id 0 in term {claim.term}, but {holder.address} holds it in the same term"
        )
        raise RegistrationRefusedError(f"{detail}: do two groups use the same broker name?", holder.address)


def _check_without_term(claim: Registration, holder: BrokerMember) -> None:
    held = holder.registration
    if claim.broker_id == LEADER_ID and held.term > 0:
        detail = f"{_who(claim)} claims broker id 0 by no term, but {holder.address} holds it by term {held.term}"
        raise RegistrationRefusedError(detail, holder.address)
    if held.table.version.state_version > claim.table.version.state_version:
        versions = f"{claim.table.version.state_version}, but {holder.address} has {held.table.version.state_version}"
        detail = f"{_who(claim)} claims broker id {claim.broker_id} by state version {versions}"
        raise RegistrationRefusedError(detail, holder.address, is_silent=claim.term == 0)


def _who(claim: Registration) -> str:
    return f"broker {claim.broker_name} at {claim.address}"
