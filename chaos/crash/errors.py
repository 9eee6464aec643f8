"""What a campaign of crash images can find.

Finding
|- LostError          something synced, or acknowledged, is not there
|- InventedError      something is there that was never written
|- DisagreeError      a queue, an index or a small file contradicts the log
'- ImageRefusedError  the image was not opened, or recovery broke
"""


class Finding(Exception):
    """Base class of the findings."""


class LostError(Finding):
    """Something synced, or acknowledged, is not there."""


class InventedError(Finding):
    """Something is there that was never written."""


class DisagreeError(Finding):
    """A queue, an index or a small file contradicts the log."""


class ImageRefusedError(Finding):
    """The image was not opened, or recovery broke."""
