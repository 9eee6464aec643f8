"""The part that a broker plays, by what the controllers say."""

from ha.core.replica_role import Election, GroupDecision, PartChange, ReplicaRole, ReplicationPart

OWN = 2


def news(master_id: int | None, epoch: int, set_epoch: int = 1, *, ha: str = "h:2") -> GroupDecision:
    ids = frozenset() if master_id is None else frozenset({master_id})
    return GroupDecision(master_id, "" if master_id is None else f"m:{master_id}", ha, epoch, ids, set_epoch)


def test_a_broker_follows_whom_the_controllers_name() -> None:
    role = ReplicaRole(OWN)
    assert role.election() is None, "nobody has told anything"
    assert role.take(news(None, 0)) is None and role.election() is Election.NO_MASTER
    assert role.take(news(1, 1)) == PartChange(ReplicationPart.SLAVE, news(1, 1))
    assert role.election() is None
    assert role.take(news(1, 1, ha="h:3")) is None and role.known.ha_address == "h:3"
    assert role.take(news(OWN, 2)) == PartChange(ReplicationPart.MASTER, news(OWN, 2))
    assert role.take(news(OWN, 2, set_epoch=7)) is None and role.known.set_epoch == 7
    assert role.take(news(3, 3)) == PartChange(ReplicationPart.SLAVE, news(3, 3))
    assert role.take(news(1, 5)) == PartChange(ReplicationPart.SLAVE, news(1, 5)), "another master to follow"


def test_old_news_change_nothing() -> None:
    role = ReplicaRole(OWN)
    role.take(news(3, 7))
    assert role.take(news(OWN, 6)) is None
    assert role.play is ReplicationPart.SLAVE and role.known.master_epoch == 7


def test_a_new_process_believes_nothing_older_than_its_log() -> None:
    role = ReplicaRole(OWN, log_epoch=7)
    assert role.take(news(3, 6)) is None and role.take(news(None, 6)) is None
    assert role.play is ReplicationPart.NEITHER and role.election() is None
    assert role.take(news(3, 7)) == PartChange(ReplicationPart.SLAVE, news(3, 7))


def test_a_name_without_a_master_has_slaves_of_nobody() -> None:
    role = ReplicaRole(OWN)
    role.take(news(OWN, 0))
    role.take(news(OWN, 3))
    assert role.take(news(None, 4)) == PartChange(ReplicationPart.NEITHER, news(None, 4))
    assert role.election() is Election.NO_MASTER


def test_a_new_process_never_takes_up_the_epoch_of_the_one_before() -> None:
    role = ReplicaRole(OWN)
    assert role.take(news(OWN, 4)) is None and role.play is ReplicationPart.NEITHER
    assert role.election() is Election.NEW_PROCESS
    assert role.take(news(OWN, 5)) == PartChange(ReplicationPart.MASTER, news(OWN, 5))
    assert role.election() is None


def test_a_master_that_is_elected_again_begins_a_new_epoch() -> None:
    role = ReplicaRole(OWN)
    role.take(news(1, 1))
    role.take(news(OWN, 2))
    assert role.take(news(OWN, 4)) == PartChange(ReplicationPart.MASTER, news(OWN, 4))


def test_a_process_in_doubt_leads_only_after_an_election_that_it_has_asked_for() -> None:
    role = ReplicaRole(OWN)
    role.take(news(1, 1), is_in_doubt=True)
    assert role.take(news(OWN, 2), is_in_doubt=True) == PartChange(ReplicationPart.NEITHER, news(OWN, 2))
    assert role.election() is Election.NEW_PROCESS, "a heartbeat from before the power cut may have won"
    assert role.take(news(OWN, 2), is_in_doubt=True) is None
    role.elected(3)
    assert role.take(news(OWN, 3), is_in_doubt=True) == PartChange(ReplicationPart.MASTER, news(OWN, 3))
    assert role.take(news(OWN, 3), is_in_doubt=True) is None and role.election() is None


def test_a_process_in_doubt_that_was_told_an_old_epoch_does_not_lead_by_an_election_from_before() -> None:
    role = ReplicaRole(OWN)
    role.take(news(OWN, 1), is_in_doubt=True)  # of a controller that was deposed: epoch 2 has begun meanwhile
    assert role.election() is Election.NEW_PROCESS
    assert role.take(news(OWN, 2), is_in_doubt=True) is None and role.play is ReplicationPart.NEITHER
    assert role.election() is Election.NEW_PROCESS
    role.elected(3)
    assert role.take(news(OWN, 3), is_in_doubt=True) == PartChange(ReplicationPart.MASTER, news(OWN, 3))
