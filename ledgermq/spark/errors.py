"""Errors of the pipeline; the command prints their text and exits with `exit_code`.

PipelineError
|- OptionError          an option that is unknown, misspelt or has no such value      exit 2
|- MissingToolError     Java, pyspark or pyarrow is missing or too old                exit 2
|- NotAStoreError       a directory that cannot be read as a store                    exit 2
|- ClusterError         brokers or nameservers refuse, or do not answer in time       exit 2
|- DataLossError        messages that a query has to read are gone                    exit 1
|- ArchiveError         an archive is damaged, of another log, or cannot be written   exit 1
'- DamagedLogError      bytes of a log that are no sound record where one must be     exit 1
"""


class PipelineError(Exception):
    """Base class."""

    exit_code = 2


class OptionError(PipelineError):
    """An option is unknown or its value is not one it takes."""


class MissingToolError(PipelineError):
    """A program or package that the pipeline needs is missing or too old."""


class NotAStoreError(PipelineError):
    """A directory cannot be read as a store."""


class ClusterError(PipelineError):
    """Brokers or nameservers refuse, or do not answer in time."""


class DataLossError(PipelineError):
    """Messages that a query has to read are gone."""

    exit_code = 1


class ArchiveError(PipelineError):
    """An archive is damaged, holds another log, or cannot be written."""

    exit_code = 1


class DamagedLogError(PipelineError):
    """A log holds bytes that are no sound record.

    Args:
        path: file.
        physical_offset: absolute offset in the log.
        detail: what is there instead.
    """

    exit_code = 1

    def __init__(self, path: str, physical_offset: int, detail: str) -> None:
        super().__init__(f"{path}: at physical offset {physical_offset}: {detail}")
        self.path = path
        self.physical_offset = physical_offset
        self.detail = detail

    def __reduce__(self) -> tuple[type["DamagedLogError"], tuple[str, int, str]]:
        return DamagedLogError, (self.path, self.physical_offset, self.detail)
