"""One run: a phase of faults, in which nothing acknowledged may be lost, then a repair, after which the group recovers.

A seed always gives the same run. After the faults every slave must be in sync, a new batch must be acknowledged with
SEND_OK, each batch must have an answer, and all logs must be equal, and confirmed up to their end.
"""

from collections.abc import Callable
from typing import Final

from chaos.appointed.judge import AppointedSeen
from chaos.appointed.plan import draw
from chaos.appointed.world import World
from chaos.sim.logged_errors import logged_errors
from chaos.sim.nemesis import Script
from chaos.sim.network import Lines

RUN_S: Final = 6.0
_RECOVERY_S: Final = 8.0
_FAULT_US: Final = (50_000, 500_000)
_PUT_US: Final = (4_000, 50_000)
_LOOK_US: Final = 200_000
_SLOW_FACTOR: Final = 30
_DIVERGED: Final = "does not copy the log of %s: %s"
"""A slave logs this error by right: after a promotion it may have what the new master lacks, and then it is wiped."""


class AppointedSimulation:
    """The simulation of one seed.

    Args:
        script: which faults of an earlier run are repeated; None: all that the plan draws.
    """

    def __init__(self, seed: int, script: Script | None = None) -> None:
        self.plan = draw(seed)
        self._script = script or Script()
        self._fault_count = 0
        self._is_over = self._is_quiet = False
        self._world: World

    def run(self, seconds: float = RUN_S) -> AppointedSeen:
        """Run it; return what was observed."""
        self._world = world = World(self.plan)
        with logged_errors(lambda text: world.judge.broken(world.now_s, text), lambda error: error.msg == _DIVERGED):
            try:
                self._run(int(seconds * 1e6))
            except Exception as error:  # any exception counts as a failure of this run
                world.judge.broken(world.now_s, f"{type(error).__name__}: {error}")
            finally:
                world.close()
        return world.judge.seen

    def _run(self, until_us: int) -> None:
        world = self._world
        seen, clock = world.judge.seen, world.clock
        for name in self.plan.names:
            world.start(name)
        self._put()
        self._look()
        clock.call_in(500_000, self._fault)
        if clock.run_until(until_us, lambda: bool(seen.violations)):
            return
        self._heal()
        acked, end_us = len(seen.acked), clock.now_us + int(_RECOVERY_S * 1e6)
        if not clock.run_until(end_us, lambda: self._is_well(acked) or bool(seen.violations)):
            world.judge.broken(world.now_s, f"{_RECOVERY_S:g} s after the last fault: {self._what_lacks(acked)}")
        self._is_quiet = True
        late_us = int(1e6 * (2 * self.plan.limit_s + 1))
        clock.run_until(clock.now_us + late_us, lambda: bool(seen.violations))
        if not seen.violations:
            self._compare()

    def _compare(self) -> None:
        world = self._world
        judge, master = world.judge, world.processes[world.master]
        for node in world.processes.values():
            with world.replaced.running(node):
                is_confirmed = node.log.confirm_offset == node.log.max_offset
                if judge.differs(master, node) or not is_confirmed:
                    end = f"{node.log.confirm_offset} of {node.log.max_offset} are confirmed"
                    judge.broken(world.now_s, f"{node.name} is no copy of {master.name} in the end; {end}")
        if world.open_puts:
            judge.broken(world.now_s, f"{len(world.open_puts)} batches were never answered")

    def _is_well(self, acked: int) -> bool:
        return not self._what_lacks(acked)

    def _what_lacks(self, acked: int) -> str:
        world = self._world
        missing = [name for name in self.plan.names if name not in world.processes]
        if missing:
            return f"{', '.join(missing)} do not run"
        in_sync = [replica.address for replica in world.processes[world.master].log.replicas() if replica.in_sync]
        if len(in_sync) < len(self.plan.names) - 1:
            return f"{len(in_sync)} slaves are in sync"
        return "" if len(world.judge.seen.acked) > acked else "nothing is acknowledged"

    # -- clients and operator

    def _put(self) -> None:
        if not self._is_quiet:
            self._world.put()
            self._world.clock.call_in(int(self._world.chance("pauses").uniform(*_PUT_US)), self._put)

    def _look(self) -> None:
        self._world.mend()
        self._world.clock.call_in(_LOOK_US, self._look)

    # -- faults

    def _fault(self) -> None:
        world, number = self._world, self._fault_count
        chance = world.chance("faults")
        self._fault_count += 1
        if self._is_over or not self._script.reaches(2 * number, chance):
            return
        kind = chance.choice(self.plan.kinds)
        if self._script.keeps(number) and self._strike(kind):
            world.judge.seen.strikes.append((number, world.now_s, kind))
        if self._script.reaches(2 * number + 1, chance):
            world.clock.call_in(int(chance.uniform(*_FAULT_US)), self._fault)

    def _strike(self, kind: str) -> bool:
        """Inject a fault; return False if it found no node to strike."""
        world, chance, names = self._world, self._world.chance("faults"), self.plan.names
        name = chance.choice(names)
        slave = chance.choice([one for one in names if one != world.master])
        one, other = chance.sample(names, 2)
        some_us = int(chance.uniform(50_000, 1_500_000))
        self._note(kind, name)
        strikes: dict[str, Callable[[], object]] = {
            "kill_master": lambda: world.down(world.master, world.kill),
            "kill_slave": lambda: world.down(slave, world.kill),
            "die_soon": lambda: self._die_soon(name, chance.randint(1, 30)),
            "power_cut": lambda: self._cut_power(name),
            "pause": lambda: world.pause(name, some_us),
            "isolate": lambda: self._cut(*((name, peer) for peer in names), *((peer, name) for peer in names)),
            "cut": lambda: self._cut((one, other), (other, one)),
            "cut_one_way": lambda: self._cut((one, other)),
            "reset": world.sockets.break_one,
            "slow_link": lambda: self._lines.slow_us.update({(one, other): some_us // 10}),
            "slow_disk": lambda: self._hold(name, "slow_factor", _SLOW_FACTOR, 1),
            "stalled_disk": lambda: self._hold(name, "is_stalled", True, False),
            "promote": world.promote,
            "promote_joined": lambda: setattr(world, "awaits", "join"),
            "promote_apart": lambda: setattr(world, "awaits", "lag"),
            "wipe": lambda: world.wipe(slave),
            "trim": world.trim,
            "heal": self._lines.heal,
        }
        return strikes[kind]() is not False

    def _note(self, kind: str, name: str) -> None:
        """Count kills and pauses of a running master, and partitions, before they happen."""
        world, met = self._world, self._world.judge.seen.met
        master = world.processes.get(world.master)
        runs = master is not None and master.paused_until_us <= world.clock.now_us
        if kind in ("isolate", "cut", "cut_one_way"):
            met["partitions"] += 1
        elif kind == "kill_master" and runs:
            met["kills"] += 1
        elif kind == "pause" and runs and name == world.master:
            met["pauses"] += 1

    @property
    def _lines(self) -> Lines:
        return self._world.network

    def _cut(self, *ways: tuple[str, str]) -> None:
        self._lines.cut.update(dict.fromkeys(way for way in ways if way[0] != way[1]))

    def _die_soon(self, name: str, steps: int) -> None:
        disk = self._world.disks[name][-1]
        disk.dies_in, disk.is_cut = steps, self.plan.survives_power_cuts and steps % 2 == 0

    def _cut_power(self, name: str) -> bool:
        if self.plan.survives_power_cuts:
            self._world.down(name, self._world.cut_power)
        return self.plan.survives_power_cuts

    def _hold(self, name: str, what: str, bad: object, good: object) -> None:
        disk = self._world.disks[name][-1]
        setattr(disk, what, bad)
        delay_us = int(self._world.chance("holds").uniform(*_FAULT_US)) * 2
        self._world.clock.call_in(delay_us, lambda: setattr(disk, what, good))

    def _heal(self) -> None:
        self._is_over = True
        world = self._world
        world.awaits = ""
        self._lines.heal()
        for name in self.plan.names:
            disk = world.disks[name][-1]
            disk.slow_factor, disk.is_stalled, disk.dies_in, disk.is_cut = 1, False, None, False
            world.start(name)
        world.resume()
