"""Brokers that leave together are taken out together, and nothing that is asked afterwards knows them still."""

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command

from .conftest import Peer, Serve, Served


def leaving(address: str, name: str = "broker-a") -> Command:
    ext = {"brokerName": name, "brokerAddr": address, "clusterName": "DefaultCluster", "brokerId": "0"}
    return Command(RequestCode.UNREGISTER_BROKER, ext=ext)


async def answers(peer: Peer, count: int) -> list[Command]:
    return [await peer.answer() for _ in range(count)]


async def test_what_is_asked_behind_an_unregistration_knows_of_it(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:1")
    peer.send(leaving("127.0.0.1:1"))
    peer.send(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "Orders"}))
    assert [answer.code for answer in await answers(peer, 2)] == [0, 17]


async def test_who_leaves_and_comes_back_at_once_is_there(served: Served) -> None:
    peer = await served.peer()
    await peer.register("127.0.0.1:1")
    peer.send(leaving("127.0.0.1:1"))
    assert (await peer.register("127.0.0.1:1")).code == 0
    await peer.answer()
    assert await peer.addresses() == {"0": "127.0.0.1:1"}


async def test_many_leave_in_one_pass_over_the_table(served: Served) -> None:
    peer, count = await served.peer(), 50
    for number in range(count):
        await peer.register(f"127.0.0.1:{number + 1}", name=f"broker-{number}")
    before = served.server.table.revision
    for number in range(count):
        peer.send(leaving(f"127.0.0.1:{number + 1}", f"broker-{number}"))
    assert {answer.code for answer in await answers(peer, count)} == {0}
    assert not served.server.table.has_members
    assert served.server.table.revision > before


async def test_one_more_than_may_wait_is_refused_and_may_come_again(serve: Serve) -> None:
    served = await serve(unregister_queue_capacity=2)
    peer = await served.peer()
    for number in range(3):
        await peer.register(f"127.0.0.1:{number + 1}", number)
    for number in range(3):
        peer.send(leaving(f"127.0.0.1:{number + 1}"))
    codes = [answer.code for answer in await answers(peer, 3)]
    assert codes == [0, 0, 1]
    assert await peer.addresses() == {"2": "127.0.0.1:3"}
    assert (await peer.ask(104, dict(leaving("127.0.0.1:3").ext))).code == 0
    assert await peer.route("Orders") is None
