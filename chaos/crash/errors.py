"""The findings of a campaign of crash images.

Finding
|- LostError          something synced or acknowledged is missing
|- InventedError      something exists that was never written
|- DisagreeError      a queue, an index or a small file contradicts the log
'- ImageRefusedError  the store did not open the image
"""


class Finding(Exception):
    """Base class of the findings."""


class LostError(Finding):
    """Something synced or acknowledged is missing."""


class InventedError(Finding):
    """Something exists that was never written."""


class DisagreeError(Finding):
    """A queue, an index or a small file contradicts the log."""


class ImageRefusedError(Finding):
    """The store did not open the image."""
