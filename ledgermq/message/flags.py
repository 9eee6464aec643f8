"""Bits of a record's sysFlag.

    bits   10 9 8 | 7           6           | 5             4            | 3 2         | 1          0
           type   | inner batch need unwrap | store host v6 born host v6 | transaction | multi tags compressed

Source: apache/rocketmq `common/sysflag/MessageSysFlag.java`.
"""

from typing import Final

COMPRESSED: Final = 0x001

TRANSACTION_MASK: Final = 0x00C
TRANSACTION_NONE: Final = 0x000
TRANSACTION_PREPARED: Final = 0x004
TRANSACTION_COMMIT: Final = 0x008
TRANSACTION_ROLLBACK: Final = 0x00C

BORN_HOST_V6: Final = 0x010
STORE_HOST_V6: Final = 0x020
HOST_MASK: Final = BORN_HOST_V6 | STORE_HOST_V6

NEED_UNWRAP: Final = 0x040
INNER_BATCH: Final = 0x080

COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300


def with_host_bits(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """Return `sys_flag` with the host bits of these encoded hosts (8 or 20 bytes each).

    The sender's own host bits are not used: wrong ones would shift every later field.
    """
    return (
        (sys_flag & ~HOST_MASK)
        | (BORN_HOST_V6 if len(born_host) == 20 else 0)
        | (STORE_HOST_V6 if len(store_host) == 20 else 0)
    )
