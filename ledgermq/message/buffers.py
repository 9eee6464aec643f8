"""Types of buffers that codecs read and write: bytes, bytearray, memoryview, and the store's mmap."""

from typing import TYPE_CHECKING, Protocol, overload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


class Readable(Protocol):
    """Bytes that can be unpacked, indexed and sliced."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> "Buffer": ...

    def __iter__(self) -> "Iterator[int]": ...


class Writable(Protocol):
    """Bytes that can be packed into and assigned by slice."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

    def __setitem__(self, key: slice, value: bytes | memoryview, /) -> None: ...
