"""Mappings of files that keep no descriptor, for tens of thousands of queue files.

Before Python 3.13 a `mmap.mmap` of a file keeps a duplicate of its descriptor. The file is therefore mapped over the
pages of an anonymous `mmap.mmap`, at the same address; that object still guards its slices and unmaps the pages.
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
    """Map the first `size_bytes` of a file, shared and writable; the descriptor may be closed at once.

    Raises:
        OSError: the file is too short, or the system refuses the mapping.
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
