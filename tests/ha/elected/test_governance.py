"""Each step of a broker's dealings with the controllers, with a broker that only notes what is asked of it."""

import asyncio
from collections.abc import Mapping

import pytest

from ha.core.copies import Copy, CopyRules
from ha.core.elected_copies import ElectedCopies, Proposal
from ha.core.replica_role import GroupDecision
from ha.elected.controllers import Controllers, NoControllerError, ProposalResult
from ha.elected.governance import Governance, GovernedMember
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.refusal import Refusal
from tests.store.support import eventually

ALONE = GroupDecision(1, "s:1", "", 3, frozenset({1}), 5)


class Notes(Controllers):
    """Controllers that note what they are asked, and answer `decision` and `verdict`.

    Attributes:
        asked: every question.
    """

    def __init__(self, asked: list[str]) -> None:
        super().__init__(["a:1", "b:1"], RemotingClient(), "c", "n")
        self.asked = asked
        self.decision: GroupDecision | None = ALONE
        self.verdict = ProposalResult(None, 0, is_certain=True)

    async def register(self, broker_id: int, address: str) -> None:
        self.asked.append("register")

    async def decided(self) -> GroupDecision:
        self.asked.append("decided")
        if self.decision is None:
            raise NoControllerError("none leads")
        return self.decision

    async def elect(self, broker_id: int, *, is_new_process: bool) -> int:
        self.asked.append(f"elect {is_new_process}")
        return 4

    async def hand_over(self, epoch: int, successor: int) -> None:
        self.asked.append(f"hand over {epoch} to {successor}")

    async def propose(self, broker_id: int, master_epoch: int, proposal: Proposal) -> ProposalResult:
        self.asked.append(f"propose {sorted(proposal.ids)}")
        return self.verdict

    async def beat(self, address: str, fields: Mapping[str, object]) -> Mapping[str, str] | None:
        self.asked.append(f"beat {address}")
        return None


class NotingBroker:
    """A broker without a log, a `GovernedBroker`; `done` has what was asked of it."""

    has_failed = lacks_master = is_in_doubt = False
    is_confirmed = True
    leads_in: int | None = None

    def __init__(self) -> None:
        self.done: list[str] = []
        self.asked: list[str] = []
        self.controllers = Notes(self.asked)
        member = GovernedMember(1, "s:1", poll_s=1000.0)
        self.copies = ElectedCopies(CopyRules())
        loop = asyncio.get_running_loop()
        self.governance = Governance(member, self, self.controllers, self.copies, loop, lambda: self.now_s)
        self.now_s = 100.0

    def heartbeat(self) -> Mapping[str, object]:
        return {"brokerId": 1}

    def become_master(self, known: GroupDecision) -> None:
        self.done.append(f"master of {known.master_epoch}")
        self.governance.begins(known, 0)
        self.leads_in = known.master_epoch

    def become_slave(self, known: GroupDecision, *, is_new: bool) -> None:
        self.done.append(f"slave of {known.master_id}, {is_new}")

    def stop_leading(self) -> None:
        self.done.append("stop")
        self.governance.ends()
        self.leads_in = None

    def confirm_more(self) -> None:
        self.done.append("confirm")

    def tell_role(self) -> None:
        self.done.append("tell")

    def note_leases(self, *, are_granted: bool) -> None: ...

    def leads(self, *slaves: int) -> None:
        """Be master of an epoch with these slaves, of which 2 is in sync, and take records."""
        self.become_master(ALONE._replace(ids=frozenset({1, 2})))
        self.governance.is_open = True
        for slave in slaves:
            self.copies.join(Copy(f"n/{slave}", f"s:{slave}", 0, self.now_s, window_bytes=1, batch_bytes=1))
        self.done.clear()


@pytest.mark.parametrize(("epoch", "is_taken"), [("3", True), ("2", False), ("4", False)])
async def test_a_lease_is_for_the_epoch_of_the_answer(epoch: str, *, is_taken: bool) -> None:
    broker = NotingBroker()
    broker.leads()
    answer = {"masterEpoch": epoch, "syncStateSetEpoch": "5", "lease": "300"}
    assert broker.governance._beaten(99.9, answer) == (0.3 if is_taken else 0.0)
    assert broker.governance.holds_lease is is_taken
    assert broker.done == (["confirm"] if is_taken else []), "what came while there was no lease waits"
    assert broker.governance._beaten(100.0, answer) == (0.3 if is_taken else 0.0)
    assert broker.done == (["confirm"] if is_taken else [])


async def test_a_successor_is_in_the_set_that_the_controllers_have_agreed_to() -> None:
    broker = NotingBroker()
    broker.leads(2, 3)
    for target in ("3", "s:3"):
        with pytest.raises(Refusal, match="master: 2 at s:2; a hand-over"):
            broker.governance.hand_over(target)
    broker.copies.slaves["n/3"].received = 100
    assert broker.governance.hand_over(None) == "2"
    await broker.governance.close()


async def test_before_it_asks_for_an_election_a_broker_beats_at_each_controller() -> None:
    """Or a heartbeat from before a power cut of this process could count."""
    broker = NotingBroker()
    await broker.governance._ask_for_election(is_new=True)
    assert broker.asked == ["beat a:1", "beat b:1", "elect True"]


async def test_a_broker_registers_once_and_asks_again_when_it_must_without_waiting_for_its_interval() -> None:
    broker = NotingBroker()
    controllers, broker.controllers.decision = broker.controllers, None
    broker.governance.start()
    await eventually(lambda: broker.asked.count("decided") > 1)
    broker.lacks_master, controllers.decision = True, ALONE._replace(master_id=2)
    await eventually(lambda: len(broker.done) > 2)
    assert broker.done[:2] == ["slave of 2, True", "slave of 2, False"]
    broker.lacks_master, controllers.decision = False, ALONE._replace(master_id=None, master_epoch=4)
    await eventually(lambda: broker.asked.count("elect False") > 1)
    assert broker.asked.count("register") == 1
    await broker.governance.close()


async def test_no_election_is_asked_for_during_a_hand_over() -> None:
    broker = NotingBroker()
    broker.governance.successor, broker.lacks_master = 2, True
    broker.governance.start()
    await eventually(lambda: broker.asked.count("decided") > 1)
    assert not [one for one in broker.asked if one.startswith("elect")]
    broker.governance.successor = None
    await eventually(lambda: "elect True" in broker.asked)
    await broker.governance.close()
