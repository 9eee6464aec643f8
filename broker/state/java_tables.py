"""Takes over the tables of a Java group, whose members copied them by polling, so that they may differ.

    new leader: its tables --(records of the state topic)--> every member has the same tables

Only in Raft mode, and once: tables that are written afterwards have our member `writtenBy`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

from broker.state.pop_tables import PopChange
from broker.state.tables import ReplicatedState, StateChange

_NAMES_MAX: Final = 500
"""Names in one record; keeps it far below the longest record."""

_V = TypeVar("_V")


def whole_tables(state: ReplicatedState) -> Iterator[StateChange]:
    """Changes that together contain all values of `state`."""
    for topics in _parts(state.topics):
        yield StateChange(topics=topics)
    for groups in _parts(state.groups):
        yield StateChange(groups=groups)
    for offsets in _parts(state.offsets):
        yield StateChange(offsets={key: dict(queues) for key, queues in offsets.items()})
    for modes in _parts(state.pop.modes):
        yield StateChange(pop=PopChange(modes=modes))
    for users in _parts(state.users):
        yield StateChange(users=users)
    for acls in _parts(state.acls):
        yield StateChange(acls=acls)


def _parts(table: Mapping[str, _V]) -> Iterator[dict[str, _V]]:
    names: Sequence[str] = sorted(table)
    for start in range(0, len(names), _NAMES_MAX):
        yield {name: table[name] for name in names[start : start + _NAMES_MAX]}
