"""Brokers taking turns on one directory: what each finds must be what the one before it left.

start -> everything is as it was -> what waited is delivered -> one round more of every kind -> stop or kill -9
"""

from collections import Counter

from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError
from tests.java_store.nodes import Group, Seat, wait_until
from tests.java_store.picture import (
    Picture,
    check_holds,
    check_queries,
    check_same,
    check_times,
    check_views,
    keys_in,
    knows_tables,
    take_picture,
)
from tests.java_store.wire import Wire
from tests.java_store.work import (
    COMMIT,
    GROUP,
    LATE,
    ROLLBACK,
    TOPICS,
    Round,
    end_half,
    make_topics,
    put_round,
)


class Relay:
    """What was left by the turns so far."""

    def __init__(self) -> None:
        self._rounds: list[Round] = []
        self._left: Picture | None = None
        self._ended: Counter[str] = Counter()
        self._arrived: Counter[str] = Counter()
        self._was_killed = False
        self._was_killed_ever = False

    def turn(self, who: str, seat: Seat) -> None:
        """`seat`, which runs and takes messages, serves everything that was left, then is given a round more."""
        with Wire(seat.port) as wire:
            if self._left is None:
                make_topics(wire)
            else:
                self._check_found(who, wire, self._left)
                self._settle_halves(wire)
                self._await_delivery(wire)
            self._rounds.append(put_round(wire, f"{who}-{len(self._rounds)}"))
            self._left = take_picture(wire)
            check_holds(self._left, self._rounds[-1])

    def check(self, who: str, seat: Seat) -> None:
        """`seat`, which runs, serves everything that was left, from a copy of the directory perhaps."""
        assert self._left is not None
        with Wire(seat.port) as wire:
            self._check_found(who, wire, self._left)

    def await_copy(self, seat: Seat) -> None:
        """Return when the tables in a directory are as the last turn left them."""
        self._await_tables_on_disk(seat)

    def end(self, seat: Seat, how: str, group: Group | None = None) -> None:
        """`stop` or `kill` the broker that had the last turn, with the rest of its group."""
        self._was_killed = how == "kill"
        self._was_killed_ever |= self._was_killed
        if self._was_killed or group:
            for each in group.seats if group else [seat]:
                self._await_tables_on_disk(each)
        if self._was_killed:
            (group or seat).kill()
        else:
            (group or seat).stop()

    def _check_found(self, who: str, wire: Wire, left: Picture) -> None:
        wait_until(lambda: knows_tables(wire), f"{who} knows the topics and the group")
        found = take_picture(wire)
        check_same(left, found)
        for done in self._rounds:
            check_holds(found, done)
            if who == "ours" or not self._was_killed_ever:  # Java drops its last index file behind an unclean stop
                check_queries(wire, found, done)
        check_views(wire, found)
        check_times(wire, found)

    def _settle_halves(self, wire: Wire) -> None:
        """The half messages of the last round are ended by the broker that did not take them."""
        for half in self._rounds[-1].halves:
            key = half[0]
            end_half(wire, half, COMMIT if key.endswith("commit") else ROLLBACK)
            self._ended[key] += key.endswith("commit")

    def _await_delivery(self, wire: Wire) -> None:
        """What was due arrives: once, or at least once where a kill may have forgotten that it did."""
        due = {key for done in self._rounds for key in done.due_soon}
        due |= set(self._ended)

        def arrived() -> Counter[str]:
            return Counter(keys_in(take_picture(wire), LATE))

        expected = {key for key in due if self._ended.get(key, 1)}
        wait_until(lambda: expected <= set(arrived()), f"{expected} are delivered")
        found = arrived()
        assert set(found) == expected
        if not self._was_killed:
            assert {key: found[key] for key in expected} == {key: max(self._arrived[key], 1) for key in expected}
        self._arrived = found

    def _await_tables_on_disk(self, seat: Seat) -> None:
        """Both write tables now and then, and Java's followers copy them: what a kill may cost there is not tested."""
        wanted = self._rounds[-1].offsets

        def written() -> bool:
            table = _on_disk(seat, "consumerOffset.json", "offsetTable")
            has_topics = TOPICS.keys() <= _on_disk(seat, "topics.json", "topicConfigTable").keys()
            has_group = GROUP in _on_disk(seat, "subscriptionGroup.json", "subscriptionGroupTable")
            has_offsets = all(
                {int(queue_id): offset for queue_id, offset in table.get(key, {}).items()} == queues
                for key, queues in wanted.items()
            )
            return has_topics and has_group and has_offsets

        wait_until(written, f"tables are on the disk of {seat.home.name}")


def _on_disk(seat: Seat, file: str, name: str) -> dict[str, dict[str, int]]:
    """A table of a file in `config/`; empty while Java, which writes in place, is at it."""
    try:
        table: dict[str, dict[str, int]] = loads((seat.store / "config" / file).read_bytes())[name]
    except (FileNotFoundError, JsonError, KeyError):
        return {}
    return table
