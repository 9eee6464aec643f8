"""Mappings that keep no descriptor: for queue files, of which there are tens of thousands.

Before Python 3.13 a `mmap.mmap` of a file holds a duplicate of its descriptor as long as it lives. So the file is
mapped over the pages of an anonymous mapping, at the same address: the object goes on to guard its slices and to unmap,
and knows of no descriptor.
"""

import ctypes
import errno
import mmap
import os

_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


def map_file(descriptor: int, size_bytes: int) -> mmap.mmap:
    """The first `size_bytes` of a file, shared, to be read and stored into; the descriptor may be closed at once.

    Raises:
        OSError: the system maps no more.
    """
    if os.fstat(descriptor).st_size < size_bytes:
        raise OSError(errno.EINVAL, f"the file is shorter than {size_bytes} bytes")
    mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    exported = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(exported)
    del exported
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _libc.mmap(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0) == _FAILED:
        code = ctypes.get_errno()
        mapping.close()
        raise OSError(code, os.strerror(code))
    return mapping
