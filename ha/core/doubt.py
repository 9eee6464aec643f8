"""Whether the end of a replica's log may be missing: a power cut may have taken records that it had acknowledged.

    power cut --> in doubt: no candidate in elections --> it has everything that a master confirmed --> sound

A master is elected from the in-sync set, which has everything acknowledged only if its members keep what they have
reported. Records that were reported before they were durable are lost with the power.
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
        """Note that the master of `epoch` has confirmed up to `confirmed`, and the log copied from it ends at `end`.

        Returns:
            Whether this ends the doubt. A master of an older epoch may lack what was acknowledged.
        """
        if self.epoch is None or epoch < self.epoch or end < confirmed:
            return False
        self.epoch = None
        return True

    def leads(self) -> None:
        """Note that this replica is master: no other replica has more."""
        self.epoch = None
