"""Who may say for whom a request is passed on: with a secret, nobody without it, nothing twice, nothing changed."""

import pytest

from broker.passing.claims import ClaimChecks, Claims, host_of
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.proof import make_nonce
from ledgermq.remoting.refusal import Cause, Refusal

OLD, NEW, WRONG = b"o" * 32, b"n" * 32, b"w" * 32
CLIENT = "10.0.0.7:50123"


def ends(*, makes: tuple[bytes, ...], accepts: tuple[bytes, ...]) -> tuple[Claims, ClaimChecks]:
    """The two ends of one connection."""
    follower, leader = make_nonce(), make_nonce()
    return Claims(makes, follower, leader), ClaimChecks(accepts, leader, follower)


def claimed(claims: Claims, code: int = 310, client: str = CLIENT, signature: str = "s") -> Command:
    command = Command(code, ext={"Signature": signature})
    command.remark = claims.make(command, client)
    return command


def test_claims_in_order_are_believed() -> None:
    claims, checks = ends(makes=(NEW, OLD), accepts=(OLD, NEW))
    for number in range(3):
        assert checks.client_of(claimed(claims, client=f"10.0.0.{number}:1")) == f"10.0.0.{number}:1"


def test_without_a_secret_there_is_no_seal() -> None:
    claims, checks = ends(makes=(), accepts=())
    assert checks.client_of(claimed(claims)) == CLIENT


@pytest.mark.parametrize(
    "change",
    [
        lambda command: setattr(command, "remark", None),
        lambda command: setattr(command, "remark", f"passed on for {CLIENT}"),
        lambda command: setattr(command, "remark", command.remark.replace("10.0.0.7", "10.0.0.8")),
        lambda command: setattr(command, "code", 36),
        lambda command: setattr(command, "code", -1),
        lambda command: setattr(command, "remark", f"passed on for {CLIENT} \ud800"),
        lambda command: command.ext.update(Signature="t"),
    ],
)
def test_what_was_changed_is_not_believed(change: object) -> None:
    claims, checks = ends(makes=(NEW,), accepts=(NEW,))
    command = claimed(claims)
    assert callable(change)
    change(command)
    with pytest.raises(Refusal) as refused:
        checks.client_of(command)
    assert refused.value.cause is Cause.NO_PERMISSION


def test_a_claim_counts_once_and_on_its_own_connection_only() -> None:
    claims, checks = ends(makes=(NEW,), accepts=(NEW,))
    command = claimed(claims)
    checks.client_of(command)
    for where in (checks, ends(makes=(NEW,), accepts=(NEW,))[1]):
        with pytest.raises(Refusal):
            where.client_of(command)


def test_another_secret_is_not_believed() -> None:
    claims, checks = ends(makes=(WRONG,), accepts=(NEW, OLD))
    with pytest.raises(Refusal):
        checks.client_of(claimed(claims))


@pytest.mark.parametrize("client", ["", "host:1", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:99999", "x" * 500])
def test_an_address_that_is_none_is_refused(client: str) -> None:
    with pytest.raises(Refusal) as refused:
        host_of(client)
    assert refused.value.cause is Cause.MALFORMED_FIELD


def test_addresses_of_both_families_are_read() -> None:
    assert (str(host_of("10.0.0.1:5")), str(host_of("[::1]:5"))) == ("10.0.0.1:5", "[::1]:5")


def unsigned(claims: Claims, client: str = CLIENT) -> Command:
    command = Command(310, ext={})
    command.remark = claims.make(command, client)
    return command


def test_requests_that_a_client_did_not_sign_share_a_seal() -> None:
    claims, checks = ends(makes=(NEW,), accepts=(NEW,))
    other = "10.0.0.8:1"
    commands = [unsigned(claims, client) for client in (CLIENT, CLIENT, other, other, CLIENT)]
    assert [len(command.remark or "") > 40 for command in commands] == [True, False, True, False, True]
    assert [checks.client_of(command) for command in commands] == [CLIENT, CLIENT, other, other, CLIENT]
    signed = claimed(claims)
    assert len(signed.remark or "") > 40
    assert checks.client_of(signed) == CLIENT


@pytest.mark.parametrize(("is_first", "signature"), [(True, {}), (False, {"Signature": "s"})])
def test_the_same_client_is_nobody_at_first_and_not_one_who_signs(is_first: bool, signature: dict[str, str]) -> None:
    claims, checks = ends(makes=(NEW,), accepts=(NEW,))
    if not is_first:
        checks.client_of(unsigned(claims))
    with pytest.raises(Refusal):
        checks.client_of(Command(310, ext=signature, remark="passed on for the same"))
