"""What all subsystems share: settings, clocks, the store, the replicated tables and the way into the log.

ReplicatedState <- Metadata, ConsumerOffsets                  the tables that are replicated by the log
SendTargets, DraftMaker, Appender, SendAnswers                the way of messages into the log, and the answers
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from broker.append.answers import SendAnswers
from broker.append.appender import Appender
from broker.append.drafts import DraftMaker
from broker.append.target import SendTargets
from broker.config import BrokerConfig
from broker.counting.counting import Counting
from broker.forwarding import LeaderForwarding
from broker.identity import BrokerIdentity
from broker.nameservers import OwnNameservers
from broker.role import Role
from broker.state.metadata import Metadata
from broker.state.new_topics import NewTopics
from broker.state.offsets import ConsumerOffsets
from broker.state.tables import ReplicatedState
from broker.throttled_requests import ThrottledRequests
from broker.timers import Spawn
from broker.turns import TurnQueue
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.wall_clock import wall_clock_ms
from store.message_store import MessageStore


class BrokerContext:
    """What all subsystems share.

    Args:
        state: the tables as loaded from disk.
        store_host: encoded address that records and message ids carry.
        announce: registers changes with the nameservers; returns when those that answer know them, or after a second.
        announce_soon: registers changed topics with the nameservers without waiting; None: everything.
        spawn: runs a coroutine until the broker stops.
    """

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        store: MessageStore,
        store_host: bytes,
        loop: asyncio.AbstractEventLoop,
        *,
        announce: Callable[[], Awaitable[None]],
        announce_soon: Callable[[Collection[str] | None], None],
        spawn: Spawn,
    ) -> None:
        self.config = config
        self.identity = identity = BrokerIdentity(config)
        self.nameservers = OwnNameservers(config)
        self.state = state
        self.store = store
        self.store_host = store_host
        self.loop = loop
        self.announce = announce
        self.announce_soon = announce_soon
        self.spawn = spawn
        self.clock_ms = wall_clock_ms
        self.turns = TurnQueue(loop)
        self.throttled = ThrottledRequests(loop.call_later)
        not_yet = replace(store.log.state, refusal=Refusal(Cause.RECOVERING, "the log is being recovered"))
        self.role = Role(config, not_yet)
        self.counting = Counting(identity.cluster, config.metrics_label_sets_max, loop.time)
        self.answers = SendAnswers(store_host, self.counting.calls, config.region_id, config.trace_on)
        self.drafts = DraftMaker(store.queues, store_host)
        self.appender = Appender(store.put, self.answers, self.counting.settled, loop, self.drafts.state)
        self.new_topics = NewTopics(announce, spawn, loop)
        self.metadata = Metadata(config, state, self.role, self.appender.propose, self.new_topics)
        self.targets = SendTargets(
            config,
            self.metadata,
            self.role,
            store.queues,
            self.new_topics,
            self.counting.arrivals,
            lambda: store.disk_full,
        )
        self.metadata.on_changed = self.new_topics.on_known = self.appender.on_change_refused = self.targets.forget
        self.offsets = ConsumerOffsets(state, self.role, self.appender.propose, self.metadata.is_undecided, loop)
        self.metadata.before_removal = self.offsets.send
        self.forwarding = LeaderForwarding(self.role, spawn)
