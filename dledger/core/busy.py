"""When a leader notifies its followers that its event loop is busy, and how long they wait for it. Pure.

During a long turn of its loop a leader sends no heartbeats, so followers would elect another one although it works.
So a thread of the leader's process sends `BusyNotice` while the loop is late:

    loop's last tick   0        heartbeat_ms                          patience_ms
                       |--quiet-----|--a notice each heartbeat_ms-----------|--quiet, an election follows

Why this is safe. A follower that gets a notice does one thing: it begins no election and agrees to none for a time, as
if it had heard its leader. Who leads, what is committed, and for how long a leader has its lease never depend on
notices: they are not answered, so they count for no heartbeat round, no entry and no read. Raft is safe however late
elections are.

Why it ends. A follower heeds notices for at most `patience_ms` after the last message that the leader's loop sent,
whatever the leader's thread says; the thread stops after the same time without a tick. So a leader whose loop stands
still for good is replaced after `patience_ms` plus one election time-out. A process that was killed or stopped sends no
notices, and those of a lost connection are not heeded, so such leaders are replaced as fast as ever. While the loop
turns no notices are sent: a leader that can send notices but no heartbeats is not kept.
"""

from dledger.core.settings import RaftSettings

_ELECTIONS = 3


def patience_ms(settings: RaftSettings) -> int:
    """Return how long (ms) followers wait for a busy leader after its last message."""
    return _ELECTIONS * settings.election_max_ms


def is_due(settings: RaftSettings, quiet_ms: int) -> bool:
    """Return whether a leader whose loop last ticked `quiet_ms` ago sends notices."""
    return settings.heartbeat_ms <= quiet_ms < patience_ms(settings)
