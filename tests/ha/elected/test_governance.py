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
        self.beaten: Mapping[str, str] | None = None

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
        if self.decision is None:
            raise NoControllerError("none leads")

    async def propose(self, broker_id: int, master_epoch: int, proposal: Proposal) -> ProposalResult:
        self.asked.append(f"propose {sorted(proposal.ids)}")
        return self.verdict

    async def beat(self, address: str, fields: Mapping[str, object]) -> Mapping[str, str] | None:
        self.asked.append(f"beat {address}")
        await asyncio.sleep(0)
        return self.beaten

    async def leave(self) -> None:
        self.asked.append("leave")


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
        self.governance.begins(known, 7)
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

    def hear(self, **answer: str) -> float:
        """Handle an answer to a heartbeat, with a lease of epoch 3 unless it says otherwise."""
        given = {"masterEpoch": "3", "syncStateSetEpoch": "5", "lease": "300"} | answer
        return self.governance._beaten(self.now_s, given)


@pytest.mark.parametrize(("epoch", "is_taken"), [("3", True), ("2", False), ("4", False)])
async def test_a_lease_is_for_the_epoch_of_the_answer(epoch: str, *, is_taken: bool) -> None:
    broker = NotingBroker()
    broker.leads()
    assert broker.hear(masterEpoch=epoch) == (0.3 if is_taken else 0.0)
    assert broker.governance.holds_lease is is_taken
    assert broker.done == (["confirm"] if is_taken else []), "what came while there was no lease waits"
    broker.now_s += 0.1
    broker.hear(masterEpoch=epoch)
    assert broker.done == (["confirm"] if is_taken else [])
    broker.now_s += 0.3
    assert not broker.governance.holds_lease


async def test_a_successor_is_in_the_set_that_the_controllers_have_agreed_to() -> None:
    broker = NotingBroker()
    broker.leads(2, 3)
    for target in ("3", "s:3"):
        with pytest.raises(Refusal, match="master: 2 at s:2; a hand-over"):
            broker.governance.hand_over(target)
    broker.copies.slaves["n/3"].received = 100
    assert broker.governance.hand_over(None) == "2"
    broker.governance.is_open, broker.copies.agreed = True, frozenset({1, 2, 3})
    assert broker.governance.hand_over(None) == "3", "which has most of the log"
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


async def test_a_lease_ends_with_the_epoch_and_no_epoch_begins_with_one_or_takes_records_at_once() -> None:
    broker = NotingBroker()
    governance = broker.governance
    for change in (broker.stop_leading, lambda: broker.become_master(ALONE)):
        broker.leads()
        broker.hear()
        assert [governance.holds_lease, governance.is_open] == [True, True]
        change()
        assert [governance.holds_lease, governance.is_open] == [False, False]
    assert broker.copies._start == 7


async def test_a_lease_counts_from_the_question_and_a_broker_that_failed_gives_it_up() -> None:
    broker = NotingBroker()
    broker.leads()
    ends_s: list[float] = []

    async def answer_late(address: str, fields: Mapping[str, object]) -> Mapping[str, str]:
        ends_s.append(broker.governance.lease.ends_s - broker.now_s)
        broker.now_s += 0.05
        return {"masterEpoch": "3", "syncStateSetEpoch": "5", "lease": "100"}

    broker.controllers.beat = answer_late  # type: ignore[method-assign]
    beats = asyncio.create_task(broker.governance._beat("a:1", asyncio.Event()))
    await eventually(lambda: len(ends_s) > 2)
    assert ends_s[2] == pytest.approx(0.05)
    broker.has_failed = True
    await beats
    assert broker.asked == ["leave"]
    assert broker.governance.lease.ends_s < 0


async def test_a_slave_waits_between_heartbeats_and_begins_at_once_when_it_is_master() -> None:
    broker = NotingBroker()
    broker.governance._member = broker.governance._member._replace(beat_s=1000.0)
    broker.controllers.decision = ALONE._replace(master_id=2)
    broker.governance.start()
    await eventually(lambda: broker.asked.count("beat b:1") == 1)
    broker.controllers.decision = ALONE._replace(master_epoch=4)
    broker.hear(masterEpoch="4")
    await eventually(lambda: broker.asked.count("beat b:1") > 1)
    await broker.governance.close()


@pytest.mark.parametrize(
    ("answer", "is_news"),
    [
        ({"masterEpoch": "4", "syncStateSetEpoch": "1"}, True),
        ({"syncStateSetEpoch": "6"}, True),
        ({}, False),
        ({"syncStateSetEpoch": "4"}, False),
        ({"masterEpoch": "4", "lease": "soon"}, False),
    ],
)
async def test_a_newer_epoch_of_the_master_or_the_set_is_news(answer: Mapping[str, str], *, is_news: bool) -> None:
    broker = NotingBroker()
    broker.hear(masterEpoch="9")
    assert not broker.governance._is_due.is_set(), "it has asked already, and no answer has come"
    broker.governance.role.known = ALONE
    broker.hear(**answer)
    assert broker.governance._is_due.is_set() is is_news


async def test_a_wish_of_the_controllers_is_met_only_by_a_master_that_takes_records() -> None:
    broker = NotingBroker()
    broker.leads(2)
    named = []
    for is_open, wish in ((False, "2"), (True, "3"), (True, "2")):
        broker.governance.is_open = is_open
        broker.hear(successor=wish)
        named.append(broker.governance.successor)
    assert named == [None, None, 2]
    await broker.governance.close()


async def test_a_hand_over_waits_until_all_is_confirmed_and_resigns_for_good() -> None:
    broker = NotingBroker()
    broker.leads(2)
    broker.governance.role.take(ALONE._replace(master_id=2, master_epoch=2))
    broker.governance.role.take(ALONE)
    assert broker.governance.role.election() is None
    broker.is_confirmed = False
    broker.governance.hand_over(None)
    with pytest.raises(Refusal, match="hands over already"):
        broker.governance.hand_over(None)
    await eventually(lambda: broker.done == ["tell"])
    await asyncio.sleep(0.05)
    assert broker.asked == [] and not broker.governance.is_open
    broker.is_confirmed = True
    await eventually(lambda: broker.governance.successor is None)
    assert (broker.done, broker.asked) == (["tell", "stop"], ["hand over 3 to 2"])
    assert broker.governance.role.election() is not None and broker.governance._is_due.is_set()


async def test_a_hand_over_whose_log_is_not_confirmed_in_time_is_given_up_and_confirmed_later() -> None:
    broker = NotingBroker()
    broker.leads(2)
    broker.is_confirmed = False
    broker.governance.hand_over(None)
    await eventually(lambda: broker.governance.successor is None)
    assert (broker.done, broker.asked, broker.leads_in) == (["tell", "confirm"], [], 3)


async def test_a_hand_over_ends_with_its_epoch() -> None:
    broker = NotingBroker()
    broker.leads(2)
    broker.is_confirmed = False
    broker.governance.hand_over(None)
    await eventually(lambda: broker.done == ["tell"])
    broker.become_master(ALONE._replace(master_epoch=4))
    broker.is_confirmed = True
    await eventually(lambda: broker.governance.successor is None)
    assert broker.asked == [] and "stop" not in broker.done


async def test_a_hand_over_that_no_controller_hears_of_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    broker = NotingBroker()
    broker.leads(2)
    broker.controllers.decision = None
    broker.governance.hand_over(None)
    await eventually(lambda: broker.governance.successor is None)
    assert "no hand-over to broker 2: none leads" in caplog.text and "failed" not in caplog.text


@pytest.mark.parametrize(
    ("verdict", "counted"),
    [
        (ProposalResult(frozenset({1}), 6, is_certain=True), {1}),
        (ProposalResult(None, 0, is_certain=True), {1, 2}),
        (ProposalResult(None, 0, is_certain=False), {1, 2, 3}),
    ],
)
async def test_after_a_verdict_those_count_that_may_be_in_the_set(verdict: ProposalResult, counted: set[int]) -> None:
    broker = NotingBroker()
    broker.leads(2, 3)
    broker.controllers.verdict = verdict
    asked = broker.copies._asked = Proposal(frozenset({1, 2, 3}), 5, renews=False)
    await broker.governance._propose(asked, 2)
    assert broker.copies.counted == {1, 2, 3}, "the answer is for another epoch"
    await broker.governance._propose(asked, 3)
    assert broker.copies.counted == counted
    is_known = verdict.ids is not None
    assert broker.done == (["confirm"] if is_known else [])
    assert broker.governance._is_due.is_set() is not is_known


async def test_one_set_is_proposed_at_a_time_and_another_one_after_the_answer() -> None:
    broker = NotingBroker()
    broker.leads()
    for _ in range(2):
        broker.governance.propose_if_needed(0, 0)
    broker.copies._asked = None
    broker.governance.propose_if_needed(0, 0)
    await eventually(lambda: len(broker.asked) == 1)
    await asyncio.sleep(0.01)
    broker.governance.propose_if_needed(0, 0)
    assert broker.copies._asked is None, "it waits after a refusal"
    await eventually(lambda: not broker.governance._is_proposing)
    broker.governance.propose_if_needed(0, 0)
    await eventually(lambda: len(broker.asked) == 2)
    await broker.governance.close()


async def test_a_decision_brings_the_set_of_this_epoch_and_the_address_of_the_master() -> None:
    broker = NotingBroker()
    broker.governance._take(ALONE._replace(master_id=2))
    broker.governance._take(ALONE._replace(master_id=2, master_address="s:9"))
    broker.governance._take(ALONE._replace(master_id=2, master_epoch=2))
    assert broker.done == ["slave of 2, True", "slave of 2, False"]
    broker.governance._take(ALONE._replace(master_epoch=4))
    broker.governance._take(ALONE._replace(master_epoch=4, ids=frozenset({1, 2}), set_epoch=6))
    assert (set(broker.copies.agreed), broker.done[2:]) == ({1, 2}, ["master of 4", "confirm"])
    broker.governance._take(ALONE._replace(ids=frozenset({1, 3}), set_epoch=9))
    assert broker.copies.agreed == {1, 2}, "the set of an older epoch"
    broker.governance._learn_set(frozenset({1}), 5)
    assert broker.copies.agreed == {1, 2}, "an older set"


async def test_an_error_of_a_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("wrong")

    broker = NotingBroker()
    broker.governance.spawn(fail())
    await eventually(lambda: "a task of the replica's part has failed" in caplog.text)


async def test_a_master_beats_often_and_a_hurry_is_for_one_heartbeat() -> None:
    broker, hurry = NotingBroker(), asyncio.Event()
    broker.governance._member = broker.governance._member._replace(beat_s=1000.0)
    hurry.set()
    beats = asyncio.create_task(broker.governance._beat("a:1", hurry))
    await eventually(lambda: "beat a:1" in broker.asked)
    assert not hurry.is_set()
    broker.leads()
    hurry.set()
    await eventually(lambda: broker.asked.count("beat a:1") > 2)
    beats.cancel()


async def test_a_broker_in_doubt_leads_only_by_an_election_for_which_it_asked() -> None:
    broker = NotingBroker()
    broker.is_in_doubt = True
    broker.governance._take(ALONE._replace(master_id=2))
    broker.governance._take(ALONE._replace(master_epoch=4))
    assert broker.done == ["slave of 2, True", "slave of 1, True"]
    await broker.governance._ask_for_election(is_new=False)
    broker.governance._take(ALONE._replace(master_epoch=4, master_address="s:9"))
    assert "master of 4" not in broker.done
    broker.governance.role._asked_epoch = -1
    await broker.governance._ask_for_election(is_new=True)
    assert broker.governance.role._asked_epoch == 4
