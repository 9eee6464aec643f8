"""The part that a broker plays, by what the controllers say."""

from ha.core.standing import Change, Decided, Election, Play, Standing

OWN = 2


def news(master_id: int | None, epoch: int, set_epoch: int = 1, *, ha: str = "h:2") -> Decided:
    ids = frozenset() if master_id is None else frozenset({master_id})
    return Decided(master_id, "" if master_id is None else f"m:{master_id}", ha, epoch, ids, set_epoch)


def test_a_broker_follows_whom_the_controllers_name() -> None:
    standing = Standing(OWN)
    assert standing.election() is None, "nobody has told anything"
    assert standing.told(news(None, 0)) is None and standing.election() is Election.NO_MASTER
    assert standing.told(news(1, 1)) == Change(Play.SLAVE, news(1, 1))
    assert standing.election() is None
    assert standing.told(news(1, 1, ha="h:3")) is None and standing.known.ha_address == "h:3"
    assert standing.told(news(OWN, 2)) == Change(Play.MASTER, news(OWN, 2))
    assert standing.told(news(OWN, 2, set_epoch=7)) is None and standing.known.set_epoch == 7
    assert standing.told(news(3, 3)) == Change(Play.SLAVE, news(3, 3))
    assert standing.told(news(1, 5)) == Change(Play.SLAVE, news(1, 5)), "another master to follow"


def test_old_news_change_nothing() -> None:
    standing = Standing(OWN)
    standing.told(news(3, 7))
    assert standing.told(news(OWN, 6)) is None
    assert standing.play is Play.SLAVE and standing.known.master_epoch == 7


def test_a_new_process_believes_nothing_older_than_its_log() -> None:
    standing = Standing(OWN, log_epoch=7)
    assert standing.told(news(3, 6)) is None and standing.told(news(None, 6)) is None
    assert standing.play is Play.NEITHER and standing.election() is None
    assert standing.told(news(3, 7)) == Change(Play.SLAVE, news(3, 7))


def test_a_name_without_a_master_has_slaves_of_nobody() -> None:
    standing = Standing(OWN)
    standing.told(news(OWN, 0))
    standing.told(news(OWN, 3))
    assert standing.told(news(None, 4)) == Change(Play.NEITHER, news(None, 4))
    assert standing.election() is Election.NO_MASTER


def test_a_new_process_never_takes_up_the_epoch_of_the_one_before() -> None:
    standing = Standing(OWN)
    assert standing.told(news(OWN, 4)) is None and standing.play is Play.NEITHER
    assert standing.election() is Election.NEW_PROCESS
    assert standing.told(news(OWN, 5)) == Change(Play.MASTER, news(OWN, 5))
    assert standing.election() is None


def test_a_master_that_is_elected_again_begins_a_new_epoch() -> None:
    standing = Standing(OWN)
    standing.told(news(1, 1))
    standing.told(news(OWN, 2))
    assert standing.told(news(OWN, 4)) == Change(Play.MASTER, news(OWN, 4))
