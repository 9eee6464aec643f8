"""Topics that this leader has just created for a sender, until the nameservers know them.

    created -> proposed, committed -> nameservers know it (or a second has passed) -> waiting answers go on

A client that gets an answer before the nameservers have the route would not find it, and ask again only after 30 s.
"""

import asyncio
from collections.abc import Awaitable, Callable

from broker.timers import Spawn
from ledgermq.remoting.refusal import Refusal


class NewTopics:
    """The topics that are created and not yet known to the nameservers.

    Args:
        announce: registers the topics; returns when the nameservers that answer have them, or after a second.
        spawn: runs a coroutine until the broker stops.

    Attributes:
        on_known: called when a topic has left this table.
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
        self._pending: dict[str, asyncio.Future[None]] = {}
        self._committed: list[str] = []  # to be announced to the nameservers
        self._is_announcing = False

    def __contains__(self, name: str) -> bool:
        return name in self._pending

    def add(self, name: str) -> Callable[[Refusal | None], None]:
        """Add a topic that is proposed; return the function to call when the proposal is settled."""
        self._pending.setdefault(name, self._loop.create_future())
        return lambda refusal: self._settle(name, refusal)

    def then(self, name: str, go_on: Callable[[], None]) -> None:
        """Call `go_on` when the nameservers know the topic or it was refused; at once if it is not new."""
        known = self._pending.get(name)
        if known is None:
            go_on()
        else:
            known.add_done_callback(lambda _: go_on())

    def _settle(self, name: str, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._finish([name])
            return
        self._committed.append(name)
        if not self._is_announcing:
            self._is_announcing = True
            self._spawn(self._announce_topic())

    async def _announce_topic(self) -> None:
        """Announce committed topics to the nameservers: one announcement at a time, however many topics are added."""
        try:
            while registered := self._committed:
                self._committed = []
                try:
                    await self._announce()
                finally:
                    self._finish(registered)
        finally:
            self._is_announcing = False

    def _finish(self, names: list[str]) -> None:
        for name in names:
            known = self._pending.pop(name, None)
            if known is not None and not known.done():
                known.set_result(None)
        self.on_known()
