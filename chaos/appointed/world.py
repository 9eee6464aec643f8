"""The nodes of one group, their disks and connections, and the operator, who starts, wipes and promotes them.

The operator promotes only slaves that the master reports as in sync. If an acknowledgement waits for all copies, the
slave with the shortest log is promoted, else the one with the longest, and only while all slaves are in sync. The old
master never comes back with its log.
"""

import contextlib
import gc
import shutil
from collections.abc import Callable
from random import Random
from typing import Final

from chaos.appointed.judge import AppointedJudge, PlacedRecord
from chaos.appointed.node import FILE_BYTES, AppointedNode, LogDisk, promised
from chaos.appointed.plan import AppointedPlan
from chaos.sim.clock import SimClock
from chaos.sim.network import Lines
from chaos.sim.pool import new_folder
from chaos.sim.process import ProcessDiesError
from chaos.sim.stack.replacements import Replacements
from chaos.sim.stack.sockets import Sockets
from ha.core.copies import Copies, Copy
from ha.master import Master
from ledgermq.message.record import RECORD_SIZE_MIN
from ledgermq.remoting.refusal import Refusal
from store.replicated_log import AppendReceipt

_RESTART_US: Final = (50_000, 800_000)
_LATE_US: Final = 4_000_000


class World:
    """One group. While it is open, this Python process simulates and does nothing else.

    Attributes:
        master: name of the node that was appointed last.
        awaits: when to promote a slave: as soon as one comes into sync ("join"), or two that are in sync have logs of
            different length ("lag"); empty: not by itself.
        open_puts: by number of each unanswered batch, the time in us at which it was sent.
    """

    def __init__(self, plan: AppointedPlan) -> None:
        self.plan = plan
        self._streams: dict[str, Random] = {}
        self.clock = SimClock(self.chance("clock"))
        self.network = Lines()
        self.network.conditions = plan.conditions
        drift = self.chance("drift")
        self.rates = {name: 1.0 + plan.clock_drift * (2 * drift.random() - 1) for name in plan.names}
        self.processes: dict[str, AppointedNode] = {}
        self.sockets = Sockets(self, self.chance("sockets"), self.chance("doubles"))
        self.replaced = Replacements(self.chance("world"), lambda: self.clock.now_us, lambda _: 0)
        self.replaced.begin()
        self._base = new_folder()
        self.disks: dict[str, list[LogDisk]] = {name: [] for name in plan.names}
        self._replaced_us = dict.fromkeys(plan.names, -1)
        for name in plan.names:
            self._new_disk(name)
        self.judge = AppointedJudge(plan.rules, self.disks)
        self.master = plan.names[0]
        self.awaits = ""
        self._in_sync_count = 0
        self.open_puts: dict[int, int] = {}
        self._put_count = 0

    def chance(self, consumer: str) -> Random:
        """Return the random stream of one consumer, which does not depend on what other consumers draw."""
        if consumer not in self._streams:
            self._streams[consumer] = Random(f"{consumer} {self.plan.seed}")
        return self._streams[consumer]

    @property
    def now_s(self) -> float:
        """Simulated time in seconds."""
        return self.clock.now_us / 1e6

    def mark(self, _what: str) -> None:
        """Do nothing: this simulation does not count events of sockets."""

    def close(self) -> None:
        """End the run, and remove what it wrote."""
        for node in list(self.processes.values()):
            node.end()
        with contextlib.suppress(OSError):
            gc.collect()
        self.replaced.end()
        for disks in self.disks.values():
            for disk in disks:
                disk.process_died()
        shutil.rmtree(self._base, ignore_errors=True)

    # -- events

    def run(self, node: AppointedNode, what: str, event: Callable[[], None]) -> None:
        """Run an event in a process: now, after its pause, or never if it has ended."""
        if node.is_gone:
            return
        if node.paused_until_us > self.clock.now_us:
            node.backlog.append(lambda: self.run(node, what, event))
            return
        try:
            node.perform(event)
        except ProcessDiesError:
            self._died(node)
            return
        with self.replaced.running(node):
            self.judge.look(node, self.now_s)
        if isinstance(node.part, Master):
            self._note_copies(node.part._copies)

    def _note_copies(self, copies: Copies) -> None:
        before, self._in_sync_count = self._in_sync_count, copies.in_sync_count
        has_joined = copies.in_sync_count > before
        is_apart = self.awaits == "lag" and len({copy.received for copy in copies.slaves.values() if copy.in_sync}) > 1
        if is_apart or (self.awaits == "join" and has_joined):
            self.awaits = ""
            self.clock.call_in(1, self._promote_now)

    def _died(self, node: AppointedNode) -> None:
        """Handle a process that died within a file call; with `is_cut` of its disk the machine lost power, too."""
        is_cut = self.disks[node.name][-1].is_cut
        (self.cut_power if is_cut else self.kill)(node.name)
        self._start_again(node.name)

    def _start_again(self, name: str) -> None:
        delay_us = int(self.chance("restarts").uniform(*_RESTART_US))
        self.clock.call_in(delay_us, lambda: self.start(name))

    # -- starts and ends of processes

    def start(self, name: str) -> None:
        """Start a node on its disk, if it does not run."""
        if name in self.processes:
            return
        disk = self.disks[name][-1]
        try:
            node = AppointedNode(self, name, disk, self.master)
        except ProcessDiesError:
            is_cut = disk.is_cut
            disk.process_died()
            if is_cut:
                disk.power_cut(forgets=False)
            self._start_again(name)
            return
        self.processes[name] = node
        if node.is_master:
            with self.replaced.running(node):
                self.judge.begins(node, self.now_s)

    def kill(self, name: str) -> None:
        """End a process as SIGKILL does: the page cache stays, its connections are closed."""
        node = self.processes.pop(name, None)
        if node is not None:
            node.end()
            self._forget_puts(name)
        self.disks[name][-1].process_died()

    def cut_power(self, name: str) -> None:
        """Cut the power of a machine: it loses what it has not synced, and its connections are not closed."""
        node = self.processes.pop(name, None)
        disk = self.disks[name][-1]
        if node is not None:
            disk.boot += 1  # with another boot id the peers are not told that the connections end
            node.end()
            self._forget_puts(name)
            disk.boot -= 1
        disk.power_cut(forgets=False)

    def down(self, name: str, how: Callable[[str], None]) -> None:
        """End a node by `how`, and start it again after a random delay."""
        how(name)
        self._start_again(name)

    def wipe(self, name: str) -> None:
        """Replace a slave's disk by an empty one, and start the slave again."""
        self.kill(name)
        self._new_disk(name)
        self._start_again(name)

    def _new_disk(self, name: str) -> None:
        disks = self.disks[name]
        disk = LogDisk(name, self._base, self.clock, self.chance("disks"), self.plan.flush_us, lambda: None)
        disk.number = len(disks)
        disks.append(disk)
        self._replaced_us[name] = self.clock.now_us

    def pause(self, name: str, duration_us: int) -> None:
        """Stop a process as SIGSTOP does; it continues after `duration_us`."""
        node = self.processes.get(name)
        if node is not None and node.paused_until_us <= self.clock.now_us:
            node.paused_until_us = self.clock.now_us + duration_us
            self.clock.call_in(duration_us, lambda: self._go_on(node))

    def resume(self) -> None:
        """Let all processes go on."""
        for node in list(self.processes.values()):
            node.paused_until_us = 0
            self._go_on(node)

    def _go_on(self, node: AppointedNode) -> None:
        backlog, node.backlog = node.backlog, []
        for event in backlog:
            event()

    # -- the operator

    def promote(self) -> bool:
        """Promote a slave in place of the lost master, if one surely has everything; return whether that was so."""
        old = self.processes.get(self.master)
        if old is None or old.paused_until_us > self.clock.now_us:
            return False
        able = self._able(old)
        slaves = len(self.plan.names) - 1
        if not able or (len(able) < slaves and self.plan.rules.wanted <= slaves):
            return False
        is_durable = self.plan.rules.counts_durable
        choose = min if self.plan.rules.wanted > slaves else max
        chosen = choose(able, key=lambda name: (able[name].acked(durable=is_durable), name))
        for name in self.plan.names:
            self.kill(name)
        self._new_disk(self.master)
        self.master = chosen
        self.start(chosen)
        for name in self.plan.names:
            if name != chosen:
                self._start_again(name)
        return True

    def _promote_now(self) -> None:
        self.promote()

    def _able(self, master: AppointedNode) -> dict[str, Copy]:
        """Return the slaves that the master reports as in sync, unless their disk lacks what they had reported."""
        assert isinstance(master.part, Master)
        copies = {f"n{int(copy.name.rpartition('/')[2]) - 1}": copy for copy in master.part._copies.slaves.values()}
        return {name: copy for name, copy in copies.items() if copy.in_sync and self._has_reported(name, copy)}

    def _has_reported(self, name: str, copy: Copy) -> bool:
        """Return False if the slave's last report came from a disk that has been replaced since."""
        if self._replaced_us[name] + _LATE_US < self.clock.now_us:
            return True
        end = copy.acked(durable=self.plan.rules.counts_durable)
        start = max(end - RECORD_SIZE_MIN, (end - 1) // FILE_BYTES * FILE_BYTES, 0)
        there, master = self.disks[name][-1], self.disks[self.master][-1]
        return there.bytes_at(start, end - start) == master.bytes_at(start, end - start)

    def mend(self) -> None:
        """Wipe each slave that reports a diverged log; it is a violation if its log is a prefix of the master's."""
        master = self.processes.get(self.master)
        for name, node in list(self.processes.items()):
            if not node.diverged or master is None:
                continue
            with self.replaced.running(node):
                if self._is_beginning(node, master):
                    self.judge.broken(self.now_s, f"{name} says that it has diverged, and is a beginning of the log")
            self.wipe(name)

    def _is_beginning(self, node: AppointedNode, master: AppointedNode) -> bool:
        mine, theirs = node.log.local.queue, master.log.local.queue
        if mine.max_offset > theirs.max_offset or mine.max_offset <= theirs.min_offset:
            return False
        start = max(mine.min_offset, theirs.min_offset)
        disks = self.disks[node.name][-1], self.disks[master.name][-1]
        while start < mine.max_offset:
            stop = min(mine.max_offset, start - start % mine.file_size + mine.file_size)
            ours, others = (disk.bytes_at(start, stop - start) for disk in disks)
            if ours != others:
                return False
            start = stop
        return True

    def trim(self) -> None:
        """Delete the older half of the master's sealed files, except files that a slave needs."""
        master = self.processes.get(self.master)
        if master is None:
            return

        def trim() -> None:
            files = master.log.sealed_files()
            if files:
                middle = files[len(files) // 2][1]
                self.judge.trimmed_to = max(self.judge.trimmed_to, master.log.trim(middle))

        self.run(master, "trim", trim)

    # -- clients

    def put(self) -> None:
        """Send a batch to the master, as a client does."""
        node = self.processes.get(self.master)
        if node is None:
            return
        chance = self.chance("clients")
        self._put_count += 1
        number, count = self._put_count, chance.choice((1, 1, 2, 5))
        bodies = [b"%d.%d " % (number, one) + b"." * chance.choice((10, 100, 700)) for one in range(count)]
        self.run(node, "put", lambda: self._put(node, number, bodies))

    def _put(self, node: AppointedNode, number: int, bodies: list[bytes]) -> None:
        records: list[PlacedRecord] = []

        def done(outcome: AppendReceipt | Refusal) -> None:
            if self.open_puts.pop(number, None) is None:
                self.judge.broken(self.now_s, f"the batch {number} has two answers")
            receipt = promised(outcome)
            if receipt is not None:
                self._count("SEND_OK")
                self.judge.acknowledged(node, records, receipt, self.now_s)
            else:
                refusal = outcome if isinstance(outcome, Refusal) else outcome.shortfall
                assert refusal is not None
                self._count(refusal.cause.name)

        self.open_puts[number] = self.clock.now_us
        try:
            drafts = node.put(bodies, done)
        except Refusal as refusal:
            del self.open_puts[number]
            self._count(refusal.cause.name)
            return
        queue = node.log.local.queue
        records += [
            PlacedRecord(draft.physical_offset, bytes(queue.slice(draft.physical_offset, draft.size)))
            for draft in drafts
        ]

    def _count(self, answer: str) -> None:
        self.judge.seen.answers[answer] += 1

    def _forget_puts(self, name: str) -> None:
        if name == self.master:
            self.open_puts.clear()
