"""Topics that this leader has just made for a sender, until the nameservers know them.

    made -> proposed, committed -> nameservers told (or a second has passed) -> who waits goes on

A client that hears of a topic before its route is there would ask for it in vain, and not again for 30 s.
"""

import asyncio
from collections.abc import Awaitable, Callable

from broker.timers import Spawn
from ledgermq.remoting.refusal import Refusal


class NewTopics:
    """What is made and not yet known.

    Args:
        announce: tells the nameservers and waits, not for long, until those that answer know.
        spawn: runs a coroutine until the broker stops.

    Attributes:
        on_known: called when a topic is known everywhere: it is like any other from now on.
    """

    def __init__(
        self,
        announce: Callable[[], Awaitable[None]],
        spawn: Spawn,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._announce = announce
        self._spawn = spawn
        self.on_known: Callable[[], None] = lambda: None
        self._loop = loop
        self._made: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._made

    def made(self, name: str) -> Callable[[Refusal | None], None]:
        """A topic is proposed; call what is returned when the proposal is settled."""
        self._made.setdefault(name, self._loop.create_future())
        return lambda refusal: self._settle(name, refusal)

    def then(self, name: str, go_on: Callable[[], None]) -> None:
        """Call `go_on` when the topic is known, or has been refused; at once when it is not new."""
        known = self._made.get(name)
        if known is None:
            go_on()
        else:
            known.add_done_callback(lambda _: go_on())

    def _settle(self, name: str, refusal: Refusal | None) -> None:
        if refusal is None:
            self._spawn(self._tell(name))
        else:
            self._finish(name)

    async def _tell(self, name: str) -> None:
        try:
            await self._announce()
        finally:
            self._finish(name)

    def _finish(self, name: str) -> None:
        known = self._made.pop(name, None)
        if known is not None and not known.done():
            known.set_result(None)
        self.on_known()
