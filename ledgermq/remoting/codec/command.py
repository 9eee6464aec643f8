"""One remoting command, request or response: the fields of a frame's header, and its body.

    flag    bit 1 one-way   bit 0 response
    opaque  chosen by the side that asks, repeated in the answer; each direction of a connection has its own sequence

Source: apache/rocketmq `remoting/.../protocol/RemotingCommand.java`, `LanguageCode.java`; `common/MQVersion.java`.
"""

from typing import Final

from ledgermq.remoting.codec.codes import request_name, response_name

JSON_HEADER: Final = 0
BINARY_HEADER: Final = 1

RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2

OUR_LANGUAGE: Final = "PYTHON"
OUR_VERSION: Final = 479
"""V5_3_3: with lower versions clients use neither SQL filters nor the present registration format."""

LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
)  # fmt: skip
"""Languages by ordinal, as in the binary header."""


class NoFields(dict[str, str]):
    """The ext of a command whose header had none: it is left out when encoded, while an empty dict is written."""


class Command:
    """A command that was decoded or is to be encoded. One is made per message: it has slots and validates nothing.

    Attributes:
        code: request code, or response code when `is_response`. i32.
        opaque: number that pairs an answer with its request. i32.
        flag: see the module.
        ext: header fields; every value is text on the wire.
        body: the bytes behind the header; a view of the received bytes, or `b""`.
        remark: error text, or None.
        language: name of the sender's language; unknown names are kept.
        version: ordinal of the sender's RocketMQ version.
        header_type: JSON_HEADER or BINARY_HEADER: how it was, or is to be, encoded.
        since: when serving it began, seconds of the monotonic clock; set by servers that measure.
        is_held: whether the answer waits for an event; set by servers that measure.
    """

    __slots__ = (
        "body",
        "code",
        "ext",
        "flag",
        "header_type",
        "is_held",
        "language",
        "opaque",
        "remark",
        "since",
        "version",
    )

    since: float
    is_held: bool

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        ext: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        remark: str | None = None,
        language: str = OUR_LANGUAGE,
        version: int = OUR_VERSION,
        header_type: int = JSON_HEADER,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.ext: dict[str, str] = NoFields() if ext is None else ext
        self.body = body
        self.remark = remark
        self.language = language
        self.version = version
        self.header_type = header_type

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the request is one-way."""
        return self.flag & ONEWAY_FLAG != 0

    @property
    def name(self) -> str:
        """Upstream's name of the code."""
        return response_name(self.code) if self.is_response else request_name(self.code)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f" remark={self.remark!r}" if self.remark else ""
        return f"<{kind} {self.name} opaque={self.opaque} ext={dict(self.ext)!r} body={len(self.body)}B{remark}>"
