"""Changes of many topics, made in some at a time, end in the same table as changes made at once."""

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from nameserver.core.model import QueueData
from nameserver.core.topics import TopicIndex

NAMES = ("a", "b")
TOPICS = ("t0", "t1", "t2", "t3", "t4", "t5")

names = st.sampled_from(NAMES)
topics = st.sampled_from(TOPICS)
changes = st.lists(
    st.one_of(
        st.tuples(
            st.just("enter"),
            names,
            st.dictionaries(topics, st.integers(1, 9), min_size=3),
            st.booleans(),
            st.booleans(),
        ),
        st.tuples(st.just("put"), names, topics, st.integers(1, 9)),
        st.tuples(st.just("remove"), st.none() | names, topics),
        st.tuples(st.just("remove all"), names, st.sets(topics, min_size=1)),
        st.tuples(st.just("leave"), names),
        st.tuples(st.just("perm"), names, st.booleans()),
        st.tuples(st.just("ask"), topics),
        st.tuples(st.just("go on"), st.integers(1, 2)),
    ),
    max_size=12,
)


def make(index: TopicIndex, change: tuple[object, ...]) -> None:
    match change:
        case ("enter", str(name), dict(entered), bool(is_news), bool(is_read_only)):
            queues = {topic: QueueData(name, count, count, 6) for topic, count in entered.items()}
            index.enter(name, queues, is_news=is_news, is_read_only=is_read_only)
        case ("put", str(name), str(topic), int(count)):
            index.put(topic, QueueData(name, count, count, 6))
        case ("remove", name, str(topic)):
            index.remove(topic, None if name is None else [str(name)])
        case ("remove all", str(name), set(removed)):
            index.remove_all(name, removed)
        case ("leave", str(name)):
            index.remove_brokers({name})
        case ("perm", str(name), bool(is_wipe)):
            (index.wipe_write if is_wipe else index.add_write)(name)
        case ("ask", str(topic)):
            index.queues(topic)


@settings(max_examples=400)
@given(changes)
def test_a_topic_that_is_asked_for_is_as_if_all_changes_were_made_at_once(changes: list[tuple[object, ...]]) -> None:
    numbers = iter(range(1_000_000))
    eager, lazy = (TopicIndex(lambda: next(numbers)) for _ in range(2))
    for change in changes:
        make(eager, change)
        with patch("nameserver.core.topics.CHANGED_AT_ONCE", 2), patch("nameserver.core.topics._UNFINISHED_MAX", 3):
            make(lazy, change)
        if change[0] == "go on":
            lazy.change_some(int(str(change[1])))
        if change[0] == "ask":
            assert lazy.queues(str(change[1])) == eager.queues(str(change[1]))
        assert lazy.entry_count >= eager.entry_count
    assert {topic: lazy.queues(topic) for topic in TOPICS} == {topic: eager.queues(topic) for topic in TOPICS}
    lazy.change_some(None)
    assert {topic: lazy.queues(topic) for topic in TOPICS} == {topic: eager.queues(topic) for topic in TOPICS}
    assert set(lazy) == set(eager)
    assert lazy.entry_count == eager.entry_count
    assert all(lazy.of_broker(name).keys() == eager.of_broker(name).keys() for name in NAMES)
