"""Users and policies as values, and the decision between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth.policy import Candidates, NeededAccess, check
from broker.state.users import CUSTOM, DEFAULT, Acl, Entry, Resource, User, UserChange
from ledgermq.remoting.refusal import Refusal

ALICE = User(name="alice", password="secret")
HOME = "10.0.0.7"


def entry(resource: str, actions: str = "All", decision: str = "Allow", *sources: str) -> Entry:
    value = {"resource": resource, "actions": actions.split(), "decision": decision, "sourceIps": list(sources)}
    return Entry.from_json(value)


def acl(*custom: Entry, default: tuple[Entry, ...] = ()) -> Acl:
    return Acl("User:alice", {}).updated({CUSTOM: custom, DEFAULT: default})


def may(rules: Acl | None, resource: str, *actions: str, user: User = ALICE, source: str = HOME) -> bool:
    try:
        check(user, rules, [NeededAccess(Resource.parse(resource), actions)], source)
    except Refusal as refusal:
        assert refusal.code == 16
        return False
    return True


def test_nothing_is_allowed_that_no_entry_matches() -> None:
    assert not may(None, "Topic:orders", "Pub")
    rules = acl(entry("Topic:orders", "Pub"))
    assert may(rules, "Topic:orders", "Pub")
    assert not may(rules, "Topic:orders", "Sub")
    assert not may(rules, "Topic:orders2", "Pub")
    assert not may(rules, "Group:orders", "Pub")


def test_one_of_the_actions_is_enough_and_all_are_every_one() -> None:
    assert may(acl(entry("Topic:orders", "Get")), "Topic:orders", "Sub", "Get")
    assert may(acl(entry("*", "All")), "Cluster:c", "Update")


def test_a_super_user_may_everything() -> None:
    root = User(name="root", password="secret", kind="Super")
    assert may(None, "Cluster:c", "Update", user=root)


@pytest.mark.parametrize(
    ("allowing", "denying"),
    [
        ("Topic:orders-eu", "Topic:orders*"),
        ("Topic:orders-*", "Topic:orders*"),
        ("Topic:o*", "Topic:*"),
        ("Topic:*", "*"),
    ],
)
def test_the_more_particular_resource_decides_whatever_the_order(allowing: str, denying: str) -> None:
    entries = [entry(allowing, "Pub"), entry(denying, "Pub", "Deny")]
    assert may(acl(*entries), "Topic:orders-eu", "Pub")
    assert may(acl(*reversed(entries)), "Topic:orders-eu", "Pub")


def test_of_equals_the_one_that_denies_decides() -> None:
    both = Acl("User:alice", {CUSTOM: (entry("Topic:t", "Pub"), entry("Topic:t", "All", "Deny"))})
    assert not may(both, "Topic:t", "Pub")


def test_default_policies_count_only_where_no_custom_one_matches() -> None:
    rules = acl(entry("Topic:*", "Sub", "Deny"), default=(entry("Topic:t", "Sub Pub"),))
    assert not may(rules, "Topic:t", "Sub")
    assert may(rules, "Topic:t", "Pub")


def test_an_entry_with_sources_counts_for_these_only() -> None:
    rules = acl(entry("Topic:t", "Pub", "Allow", "10.0.0.0/24", "192.168.1.1", "fd00::/8"))
    assert may(rules, "Topic:t", "Pub", source="10.0.0.200")
    assert may(rules, "Topic:t", "Pub", source="fd00::1")
    assert not may(rules, "Topic:t", "Pub", source="10.0.1.1")
    assert not may(rules, "Topic:t", "Pub", source="no address")


def test_the_refusal_says_what_rocketmq_says() -> None:
    with pytest.raises(Refusal) as caught:
        check(ALICE, None, [NeededAccess(Resource("Topic", "t"), ("Pub",))], HOME)
    assert caught.value.remark == "User:alice has no permission to access Topic:t from 10.0.0.7, no matched policies."
    with pytest.raises(Refusal, match="the decision is deny"):
        check(ALICE, acl(entry("*", "All", "Deny")), [NeededAccess(Resource("Topic", "t"), ("Pub",))], HOME)


RESOURCES = st.sampled_from(["*", "Topic:*", "Topic:a*", "Topic:ab*", "Topic:ab", "Group:*", "Group:g"])
ENTRIES = st.builds(
    entry, RESOURCES, st.sampled_from(["Pub", "Sub", "Pub Sub", "All"]), st.sampled_from(["Allow", "Deny"])
)


@given(
    st.lists(ENTRIES, max_size=6), st.lists(ENTRIES, max_size=3), st.sampled_from(["Topic:ab", "Topic:b", "Group:g"])
)
def test_the_deciding_entry_matches_and_no_order_of_entries_changes_the_decision(
    custom: list[Entry], default: list[Entry], touched: str
) -> None:
    access = NeededAccess(Resource.parse(touched), ("Pub",))
    rules = Acl("s", {CUSTOM: tuple(custom), DEFAULT: tuple(default)})
    reversed_rules = Acl("s", {CUSTOM: tuple(custom[::-1]), DEFAULT: tuple(default[::-1])})
    there = Candidates(rules, 1).deciding_entry(access, HOME)
    for other in (Candidates(reversed_rules, 1), Candidates(rules, 1000), Candidates(reversed_rules, 1000)):
        found = other.deciding_entry(access, HOME)
        assert (there and there.decision) == (found and found.decision)
    assert there is None or there.resource.matches(access.resource)


def test_a_request_names_no_more_than_can_be_compared_with_the_patterns_of_its_user() -> None:
    wanted = [NeededAccess(Resource("Topic", f"t{number}"), ("Pub",)) for number in range(10_000)]
    named = [entry(f"Topic:t{number}") for number in range(10_000)]
    check(ALICE, acl(*named), wanted, HOME)
    check(ALICE, acl(entry("Topic:t*")), wanted, HOME)
    with pytest.raises(Refusal, match="name fewer in one request"):
        check(ALICE, acl(*(entry(f"Topic:t{number}*") for number in range(100))), wanted, HOME)


def test_an_entry_for_any_kind_of_resource_holds_for_requests_of_many_names_too() -> None:
    rules = acl(entry("Any:x", decision="Deny"), default=(entry("Topic:*"),))
    for count in (1, 10):
        with pytest.raises(Refusal, match="the decision is deny"):
            check(
                ALICE, rules, [NeededAccess(Resource("Topic", f"t{number}"), ("Pub",)) for number in range(count)], HOME
            )


@given(st.lists(ENTRIES, max_size=6), st.lists(ENTRIES, max_size=3))
def test_policies_read_back_as_they_were_written(custom: list[Entry], default: list[Entry]) -> None:
    rules = Acl("User:alice", {}).updated({CUSTOM: custom} if custom else {})
    rules = rules.updated({DEFAULT: default} if default else {})
    if rules.policies:
        assert Acl.from_json(rules.to_json()) == rules


def test_an_entry_of_the_same_resource_is_replaced_and_can_be_removed() -> None:
    rules = acl(entry("Topic:a", "Pub"), entry("Topic:b", "Pub"))
    changed = rules.updated({CUSTOM: [entry("Topic:a", "Sub")]})
    assert not may(changed, "Topic:a", "Pub")
    assert may(changed, "Topic:b", "Pub")
    assert not changed.without(CUSTOM, Resource.parse("Topic:a")).without(CUSTOM, Resource.parse("Topic:b")).policies


@pytest.mark.parametrize(
    ("value", "remark"),
    [
        ({}, "The body of acl is null"),
        ([], "The body of acl is null"),
        ({"policies": [{"entries": []}]}, "The policy entries is empty."),
        ({"policies": [{"entries": [{"resource": "Thing:x"}]}]}, "The resource is null."),
        ({"policies": [{"entries": [{"resource": "Topic:x"}]}]}, "The actions is empty."),
        ({"policies": [{"entries": [{"resource": "Topic:x", "actions": ["Any"]}]}]}, "The actions can not be Any."),
        (
            {"policies": [{"entries": [{"resource": "Topic:x", "actions": ["Pub"], "sourceIps": ["10.0.0.300"]}]}]},
            "The source ip is invalid.",
        ),
        (
            {"policies": [{"entries": [{"resource": "Topic:x", "actions": ["Pub"], "decision": "Perhaps"}]}]},
            "The decision is null or illegal.",
        ),
        ({"policies": [{"entries": [{"resource": "Topic:x", "actions": "Pub"}]}]}, "field actions is not a list"),
    ],
)
def test_policies_that_say_nothing_are_refused(value: object, remark: str) -> None:
    with pytest.raises(Refusal, match=remark):
        Acl.from_json(value)


def test_a_password_is_kept_and_never_shown() -> None:
    user = UserChange.from_json({"password": "secret", "userType": "super"}).create("root")
    assert user.is_super
    assert "secret" not in repr(user)
    assert "password" not in user.to_json(with_password=False)
    assert UserChange.from_json({"userStatus": "disable"}).update(user).password == "secret"
    with pytest.raises(Refusal, match="password can not be blank"):
        UserChange().create("root")
