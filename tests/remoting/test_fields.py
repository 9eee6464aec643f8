"""Header fields are read strictly, and a bad one is named."""

import pytest

from ledgermq.remoting.addresses import split_address
from ledgermq.remoting.codec import fields
from ledgermq.remoting.errors import ConnectError
from ledgermq.remoting.refusal import Cause, Refusal


def test_good_fields_become_values() -> None:
    ext = {"n": "-7", "big": str(2**63 - 1), "yes": "TRUE", "no": "false", "t": "x"}
    assert fields.integer(ext, "n") == -7
    assert fields.long(ext, "big") == 2**63 - 1
    assert fields.boolean(ext, "yes") is True
    assert fields.boolean(ext, "no", default=True) is False
    assert fields.boolean(ext, "absent", default=True) is True
    assert fields.integer(ext, "absent", 5) == 5
    assert fields.text(ext, "t") == "x"


@pytest.mark.parametrize("value", ["", "x", "1.5", "0x10", str(2**31), str(-(2**31) - 1), "9" * 5000])
def test_a_number_that_is_none_or_too_large_is_refused_by_its_name(value: str) -> None:
    with pytest.raises(Refusal, match="queueId") as caught:
        fields.integer({"queueId": value}, "queueId")
    assert caught.value.cause is Cause.MALFORMED_FIELD
    assert len(caught.value.remark) < 300


@pytest.mark.parametrize("port", ["0", "65536", "000080", "000001" + "9" * 10, "9" * 5000, "\u0663", "+80", " 80", ""])
def test_an_address_whose_port_is_none_is_refused_wherever_it_is_read(port: str) -> None:
    with pytest.raises(Refusal, match="brokerAddr"):
        fields.address({"brokerAddr": f"h:{port}"}, "brokerAddr")
    with pytest.raises(ConnectError, match="not host:port"):
        split_address(f"h:{port}")
    assert fields.address({"brokerAddr": "h:65535"}, "brokerAddr") == "h:65535"
    assert split_address("[::1]:1") == ("::1", 1)


@pytest.mark.parametrize("read", [fields.text, fields.integer, fields.long])
def test_a_missing_field_is_named(read: object) -> None:
    assert callable(read)
    with pytest.raises(Refusal, match="field topic is missing"):
        read({}, "topic")
