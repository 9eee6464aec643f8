"""Whether the end of a replica's log may be missing: it had acknowledged records, and a power cut took them.

    power cut --> in doubt: the replica is no candidate in elections --> it has all that a master confirms --> sound

A master is elected from the in-sync set, and that set has everything acknowledged only as long as its members keep
what they have reported. Records that were reported before they were durable are lost with the power.
"""


class Doubt:
    """The doubt of one process.

    Args:
        epoch: newest epoch of a master that this replica knew before; None: its log is sound.

    Attributes:
        epoch: the same while the doubt lasts, then None.
    """

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = epoch

    def heard(self, epoch: int, confirmed: int, end: int) -> bool:
        """The master of `epoch`, which is copied, has confirmed so much, and the log here has `end`.

        Returns:
            Whether this ends the doubt. A master of an older epoch may lack what was acknowledged.
        """
        if self.epoch is None or epoch < self.epoch or end < confirmed:
            return False
        self.epoch = None
        return True

    def leads(self) -> None:
        """This replica is master: no other has more."""
        self.epoch = None
