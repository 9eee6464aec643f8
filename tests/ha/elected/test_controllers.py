"""What a broker makes of the controllers' answers."""

from collections.abc import Mapping

from ha.core.elected_copies import Proposal
from ha.elected.controllers import Controllers
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.outgoing_requests import Patience

ASKED = Proposal(frozenset({1, 2}), 5, renews=False)


class Answering(RemotingClient):
    """Controllers that answer with these codes, by address."""

    def __init__(self, codes: Mapping[str, int]) -> None:
        super().__init__()
        self.codes = codes

    async def request(
        self, address: str, command: Command, timeout_s: float = 3.0, patience: Patience | None = None
    ) -> Command:
        return Command(self.codes[address])


async def test_a_controller_that_leads_no_more_may_have_decided_before() -> None:
    """It answers 2007 also when it was deposed while the others agreed to the proposal."""
    controllers = Controllers(["a:1", "b:1"], Answering({"a:1": 2007, "b:1": 2013}), "c", "n")
    assert not (await controllers.propose(1, 3, ASKED)).is_certain
    assert (await controllers.propose(1, 3, ASKED)).is_certain, "the leading one is asked first from now on"
