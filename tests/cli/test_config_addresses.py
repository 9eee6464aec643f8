import ipaddress

from node.addresses import InterfaceAddress, choose_host, list_candidates

CANDIDATES = [
    InterfaceAddress("10.1.2.3", "eth0"),
    InterfaceAddress("172.17.0.1", "docker0"),
    InterfaceAddress("127.0.0.1", "lo"),
]


def test_where_the_process_listens_at_one_address_only_there_is_no_choice() -> None:
    choice = choose_host("10.9.9.9", ["127.0.0.1:9876"], CANDIDATES)
    assert (choice.host, choice.others) == ("10.9.9.9", ())


def test_the_address_on_the_way_to_the_nameserver_is_preferred_and_the_others_are_named() -> None:
    choice = choose_host("0.0.0.0", ["namesrv:9876", "127.0.0.1:9876"], CANDIDATES)
    assert choice.host == "127.0.0.1"
    assert choice.sentence("advertised", "brokerIP1") == (
        "advertised address 127.0.0.1: chosen, it is on the way to 127.0.0.1:9876; "
        "other candidates: 10.1.2.3 (eth0), 172.17.0.1 (docker0); set brokerIP1 to choose"
    )


def test_without_a_nameserver_some_address_of_this_machine_is_chosen() -> None:
    choice = choose_host("0.0.0.0")
    assert choice.host in {candidate.address for candidate in list_candidates()}
    assert choice.host not in {candidate.address for candidate in choice.others}


def test_candidates_are_this_machines_addresses_with_loopback_last() -> None:
    candidates = list_candidates()
    assert candidates[-1] == InterfaceAddress("127.0.0.1", "lo")
    assert all(ipaddress.ip_address(candidate.address) for candidate in candidates)
