"""Members prove that they hold the cluster's secret, or nothing that they say is heard."""

import asyncio
import functools
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.passing import claims
from dledger.core.messages import InstallRequest, TransferRequest
from dledger.peers.hello import PROTOCOL_VERSION, SEALED_FRAMES, Hello
from dledger.peers.transport import TcpTransport
from dledger.peers.wire import CHALLENGE, HELLO, REFUSAL, CopyRequest, CopyResponse, Encoder, PeerMessage, seal, unseal
from ledgermq.message.crc import crc32
from ledgermq.remoting.proof import (
    DIALER,
    LISTENER,
    NONCE_SIZE,
    SecretFileError,
    Secrets,
    prove,
    read_secrets,
)
from ledgermq.remoting.serving.frame_seal import FrameSeal
from tests.dledger.conftest import RaftCluster, until
from tests.dledger.peers.pair import Pair, Stranger, said_by
from tests.limits import WAIT_S
from tests.ports import free_ports

SECRET = b"the secret of this cluster, which nobody may see"
OTHER_SECRET = b"the secret of another cluster, likewise not seen"
REFUSED = seal(REFUSAL, b"proof of the cluster's secret", is_response=True)
SAID = said_by("n1", "n0")


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    yield made
    for transport in made.transports:
        await transport.close()


async def test_members_with_one_secret_join_and_hear_each_other(pair: Pair) -> None:
    (zero, ear0), (_, ear1) = await pair.start("n0", secrets=(SECRET,)), await pair.start("n1", secrets=(SECRET,))
    await until(lambda: ear0.joined and ear1.joined, "both joined")
    zero.send("n1", TransferRequest(1, "n0"))
    await until(lambda: ear1.messages == [("n0", TransferRequest(1, "n0"))], "the message")


async def test_whoever_proves_that_he_has_the_secret_is_answered_with_a_proof(pair: Pair) -> None:
    zero, _ = await pair.start("n0", secrets=(SECRET,))
    member = await Stranger.dial(pair.ports["n0"])
    said = said_by("n1", "n0", nonce="ab" * NONCE_SIZE)
    member.say(said, prove(SECRET, DIALER, member.nonce, said))
    await until(lambda: zero.links["n1"]._accepted, "accepted")
    answer = await asyncio.wait_for(member.reader.read(4096), WAIT_S)
    member.writer.close()
    proof, heard = (bytes(part) for part in unseal(HELLO, memoryview(answer)[8 + int.from_bytes(answer[4:8]) :]))
    assert (json.loads(heard)["node_id"], json.loads(heard)["to"]) == ("n0", "n1")
    assert proof == prove(SECRET, LISTENER, bytes.fromhex("ab" * NONCE_SIZE), heard)


@pytest.mark.parametrize(
    "made",
    [
        lambda nonce: b"",
        lambda nonce: bytes(32),
        lambda nonce: prove(OTHER_SECRET, DIALER, nonce, SAID),
        lambda nonce: prove(SECRET, DIALER, nonce, SAID)[:-1],
        lambda nonce: prove(SECRET, DIALER, nonce, SAID) + b"\0",
        lambda nonce: prove(SECRET, LISTENER, nonce, SAID),
        lambda nonce: prove(SECRET, DIALER, bytes(NONCE_SIZE), SAID),
        lambda nonce: prove(SECRET, DIALER, nonce, said_by("n1", "n0", group="Other")),
    ],
    ids=["none", "zeros", "wrong secret", "cut", "longer", "a listener's", "another nonce", "another hello"],
)
async def test_a_stranger_is_refused_learns_nothing_and_is_not_heard(
    pair: Pair, caplog: pytest.LogCaptureFixture, made: Callable[[bytes], bytes]
) -> None:
    zero, ear0 = await pair.start("n0", secrets=(SECRET,))
    stranger = await Stranger.dial(pair.ports["n0"])
    stranger.say(SAID, made(stranger.nonce))
    stranger.writer.write(b"".join(map(bytes, Encoder().encode(TransferRequest(1, "n1")))))
    assert await stranger.rest() == REFUSED
    assert not ear0.messages and not ear0.joined and zero.links["n1"]._accepted is None
    assert zero.refused_count == 1
    assert "peer at 127.0.0.1 refused: it did not prove" in caplog.text
    assert SECRET.decode() not in caplog.text


async def test_a_hello_that_was_recorded_is_worth_nothing_on_the_next_connection(pair: Pair) -> None:
    zero, ear0 = await pair.start("n0", secrets=(SECRET,))
    member = await Stranger.dial(pair.ports["n0"])
    recorded = SAID, prove(SECRET, DIALER, member.nonce, SAID)
    member.say(*recorded)
    await until(lambda: zero.links["n1"]._accepted, "the member was heard")
    member.writer.close()
    await until(lambda: zero.links["n1"]._accepted is None, "the member is gone")
    stranger = await Stranger.dial(pair.ports["n0"])
    stranger.say(*recorded)
    assert await stranger.rest() == REFUSED
    assert not ear0.joined


async def test_only_the_first_hello_of_a_connection_counts(pair: Pair) -> None:
    zero, _ = await pair.start("n0", secrets=(SECRET,))
    stranger = await Stranger.dial(pair.ports["n0"])
    right = prove(SECRET, DIALER, stranger.nonce, SAID)
    stranger.writer.write(seal(HELLO, SAID, b"") + seal(HELLO, SAID, right))
    assert await stranger.rest() == REFUSED
    assert zero.links["n1"]._accepted is None


class FalseListener:
    """Stands at a member's address. Challenges whoever dials, then answers the first hello with `answer(hello, proof)`.

    Attributes:
        nonce: its challenge.
        heard: what the node said behind its hello, after it was answered; None before its connection has ended.
    """

    def __init__(self, nonce: bytes, answer: Callable[[bytes, bytes], bytes]) -> None:
        self.nonce = nonce
        self._answer = answer
        self.heard: bytes | None = None

    async def start(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(seal(CHALLENGE, self.nonce))
        prefix = await reader.readexactly(8)
        frame = await reader.readexactly(int.from_bytes(prefix[:4]) - 4)
        proof, said = unseal(HELLO, memoryview(frame)[int.from_bytes(prefix[4:]) :])
        writer.write(self._answer(bytes(said), bytes(proof)))
        self.heard = await reader.read()
        writer.close()


def dialers_proof(said: bytes) -> tuple[bytes, bytes]:
    """What the true n1 says when it dials and is challenged with the nonce that n0 has just drawn."""
    nonce = bytes.fromhex(json.loads(said)["nonce"])
    return SAID, prove(SECRET, DIALER, nonce, SAID)


@pytest.mark.parametrize(
    "answer",
    [
        lambda said, proof: seal(HELLO, said, proof),
        lambda said, proof: seal(HELLO, SAID, proof),
        lambda said, proof: seal(HELLO, SAID, b""),
        lambda said, proof: seal(HELLO, *dialers_proof(said)),
    ],
    ids=["reflected", "reflected proof", "no proof", "a dialer's proof"],
)
async def test_a_false_listener_is_not_spoken_to(
    pair: Pair, caplog: pytest.LogCaptureFixture, answer: Callable[[bytes, bytes], bytes]
) -> None:
    false = FalseListener(bytes(NONCE_SIZE), answer)
    async with await false.start(pair.ports["n1"]):
        zero, _ = await pair.start("n0", secrets=(SECRET,))
        await until(lambda: false.heard is not None, "hung up")
        zero.send("n1", TransferRequest(1, "n0"))
        assert not zero.links["n1"].is_open
        await zero.close()
    assert false.heard == b""
    assert f"peer at n1-127.0.0.1:{pair.ports['n1']} refused: it did not prove" in caplog.text


async def test_a_proof_reflected_to_the_listener_of_its_maker_fails(pair: Pair) -> None:
    back: list[tuple[bytes, bytes]] = []

    def keep(said: bytes, proof: bytes) -> bytes:
        back.append((said, proof))
        return b""

    false = FalseListener(b"", keep)
    zero: TcpTransport | None = None
    async with await false.start(pair.ports["n1"]):
        # The listener's challenge becomes the challenge to the same node's dialer, whose answer goes to the listener.
        zero, ear0 = await pair.start("n0", secrets=(SECRET,))
        stranger = await Stranger.dial(pair.ports["n0"])
        false.nonce = stranger.nonce
        zero.links["n1"]._wake.set()
        await until(lambda: back, "n0 has proved itself")
        assert back[0][1] == prove(SECRET, DIALER, stranger.nonce, back[0][0])
        stranger.say(*back[0])
        assert await stranger.rest() == seal(REFUSAL, b"node id", is_response=True)
        assert zero.links["n1"]._accepted is None and not ear0.joined
        await zero.close()


@pytest.mark.parametrize("secrets", [((SECRET,), (OTHER_SECRET,)), ((SECRET,), ()), ((), (SECRET,))])
async def test_members_whose_secrets_differ_say_so_on_both_sides_and_show_neither(
    pair: Pair, caplog: pytest.LogCaptureFixture, secrets: tuple[Secrets, Secrets]
) -> None:
    caplog.set_level(logging.DEBUG)
    (zero, ear0) = await pair.start("n0", secrets=secrets[0])
    (one, ear1) = await pair.start("n1", secrets=secrets[1])

    def told(node_id: str) -> bool:
        return (
            f"peer {node_id}-127.0.0.1:{pair.ports[node_id]} refuses this node because of its proof of" in caplog.text
        )

    await until(lambda: told("n0") and told("n1"), "told by the dialers")
    refusals = [record for record in caplog.records if "peer at 127.0.0.1 refused: it did not prove" in record.message]
    assert len(refusals) == 2, "told by the listeners, once in ten seconds"
    assert zero.refused_count >= 2 and one.refused_count >= 2
    assert not ear0.joined and not ear1.joined
    assert not any(secret.decode() in caplog.text for secret in (*secrets[0], *secrets[1]))


async def test_many_refusals_are_counted_and_make_one_line_of_the_log(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    zero, _ = await pair.start("n0", secrets=(SECRET,))
    for number in range(30):
        stranger = await Stranger.dial(pair.ports["n0"])
        stranger.say(said_by("n1", "n0", client_address=f"host-{number}"), b"")
        assert await stranger.rest() == REFUSED
    assert zero.refused_count == 30
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_silent_connections_push_out_no_handshake_of_another_host(pair: Pair) -> None:
    zero, _ = await pair.start("n0", secrets=(SECRET,))
    member = await Stranger.dial(pair.ports["n0"])
    silent = [
        await asyncio.open_connection("127.0.0.1", pair.ports["n0"], local_addr=(f"127.0.0.{host}", 0))
        for host in range(2, 8)
        for _ in range(20)
    ]
    await until(lambda: zero.refused_count >= len(silent) + 1 - 64, "the oldest closed")
    assert len(zero._unknown) == 64
    member.say(SAID, prove(SECRET, DIALER, member.nonce, SAID))
    await until(lambda: zero.links["n1"]._accepted, "the member was heard")
    for writer in (member.writer, *(writer for _, writer in silent)):
        writer.close()


async def test_a_stranger_s_install_and_term_change_nothing(raft_cluster: Callable[..., RaftCluster]) -> None:
    cluster = raft_cluster(2, peer_secrets=(SECRET,))
    await cluster.start()
    leader = await cluster.elected()
    await cluster.append(leader, *(b"message %d" % number for number in range(20)))
    await cluster.caught_up()
    (follower,) = cluster.logs.keys() - {leader}
    log = cluster.logs[follower]
    before, soft, data = log.status(), log.status().soft, cluster.data(follower)
    config = cluster.config(leader)
    said = Hello(
        version=PROTOCOL_VERSION, cluster="C", group="G", members="n0;n1", node_id=leader, to=follower,
        nonce="00" * NONCE_SIZE, incarnation="i", session="s", client_address=config.client_address,
        inside_address="", data_file_size=config.data_file_size_bytes,
    ).encode()  # fmt: skip
    install = InstallRequest(soft.term + 5, leader, 500, 1 << 20, soft.term + 4, 1, 0, 0, b"", 0)
    for proof in (b"", bytes(32), prove(OTHER_SECRET, DIALER, bytes(NONCE_SIZE), said)):
        stranger = await Stranger.dial(log.port)
        stranger.writer.write(seal(HELLO, said, proof) + b"".join(map(bytes, Encoder().encode(install))))
        assert await stranger.rest() == REFUSED
    await cluster.append(leader, b"the last message")
    await cluster.caught_up()
    after = log.status()
    assert (after.soft, after.first_index) == (soft, before.first_index)
    assert after.last_index == before.last_index + 1
    assert all(cluster.data(follower)[name].startswith(old) for name, old in data.items())
    families = {family.name: family for family in log.metrics()}
    assert [row and row[1] for row in families["ledgermq_refused_peers_total"].rows] == [3]


# ---- frames behind the handshake


class Meddler:
    """Stands between two members, passes their bytes on, and changes what the dialer says behind its hello.

    Args:
        change: makes of the frames that came in one piece, the hello not among them, what is passed on.
    """

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change

    async def start(self, port: int, to: int) -> asyncio.Server:
        return await asyncio.start_server(lambda reader, writer: self._serve(reader, writer, to), "127.0.0.1", port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: int) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", to)
        back = asyncio.create_task(self._pass_on(other_reader, writer))
        prefix = await reader.readexactly(8)
        other_writer.write(prefix + await reader.readexactly(int.from_bytes(prefix[:4]) - 4))
        while data := await reader.read(1 << 16):
            other_writer.write(self._change(data))
        other_writer.close()
        await back
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)


FORGED = b"".join(map(bytes, Encoder().encode(TransferRequest(9, "n0"))))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: FORGED,
        lambda data: FORGED + data,
        lambda data: data + data,
        lambda data: seal_with_a_guess(),
        lambda data: with_another_term(data),
    ],
    ids=["another frame", "a frame before it", "twice", "sealed by another secret", "changed"],
)
async def test_what_is_put_into_a_connection_of_members_closes_it_and_is_not_heard(
    pair: Pair, caplog: pytest.LogCaptureFixture, change: Callable[[bytes], bytes]
) -> None:
    one, ear1 = await pair.start("n1", secrets=(SECRET,))
    meddler = Meddler(change)
    (port,) = free_ports(1)
    async with await meddler.start(port, pair.ports["n1"]):
        pair.ports["n1"] = port
        zero, _ = await pair.start("n0", secrets=(SECRET,))
        await until(lambda: zero.links["n1"].is_open, "dialed through the meddler")
        assert not one.refused_count
        zero.send("n1", TransferRequest(1, "n0"))
        await until(lambda: one.refused_count, "found out")
        await zero.close()
    assert ear1.messages in ([], [("n0", TransferRequest(1, "n0"))])
    assert "this frame was not sent by the peer as it came here" in caplog.text


def with_another_term(data: bytes) -> bytes:
    """The same frame and seal, with a CRC that fits."""
    head, end = data[:-30], data[-16:]
    meta = (7).to_bytes(8)
    return head + crc32(meta).to_bytes(4) + (8).to_bytes(2) + meta + end


def seal_with_a_guess() -> bytes:
    seals = FrameSeal(SEALED_FRAMES, OTHER_SECRET, bytes(NONCE_SIZE), bytes(NONCE_SIZE))
    return b"".join(map(bytes, Encoder().encode(TransferRequest(9, "n0"), seals)))


async def test_frames_of_every_kind_are_heard_through_their_seals(pair: Pair) -> None:
    zero, _ = await pair.start("n0", secrets=(SECRET,))
    _, ear1 = await pair.start("n1", secrets=(SECRET,))
    await until(lambda: ear1.joined and zero.links["n1"].is_open, "joined")
    messages: list[PeerMessage] = [TransferRequest(1, "n0"), CopyResponse(1, 2, b"entry"), CopyRequest(3, 4)]
    for message in messages:
        zero.send("n1", message)
    await until(lambda: len(ear1.messages) == 3, "heard")
    assert [(m.index, m.term) for _, m in ear1.messages if isinstance(m, CopyRequest)] == [(3, 4)]


def test_another_way_of_sealing_needs_another_version() -> None:
    """Members that seal in different ways must refuse each other's hello or greeting, which name the version."""
    values = (b"s" * 32, b"d" * NONCE_SIZE, b"l" * NONCE_SIZE)
    frame, claim = (FrameSeal(purpose, *values).next(52008, b"bytes").hex() for purpose in (SEALED_FRAMES, b"claims"))
    assert (PROTOCOL_VERSION, frame) == (4, "94519fa862cf1ec5f969c8635f103286")
    assert (claims.VERSION, claim) == ("2", "e464658aaf62aff4ff2952d992c41de9")


def test_no_two_frames_have_one_key_and_number() -> None:
    """A nonce of GCM, the number and code of a frame, must not be used twice with one key."""
    secret, one, other = b"s" * 32, b"a" * NONCE_SIZE, b"b" * NONCE_SIZE
    connections = [(one, other), (other, one), (one, one), (other, other)]  # the other direction; a nonce drawn anew
    made = [FrameSeal(purpose, secret, *nonces) for purpose in (SEALED_FRAMES, b"claims") for nonces in connections]
    seals = [seal.next(52008, b"") for seal in made for _ in range(3)]
    assert len(set(seals)) == len(seals)


async def test_frames_that_were_recorded_are_worth_nothing_after_a_reconnection(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener and the dialer draw new values: the first frame of the new connection has another key."""
    one, ear1 = await pair.start("n1", secrets=(SECRET,))
    recorded: list[bytes] = []

    def record_or_repeat(data: bytes) -> bytes:
        recorded.append(data)
        return recorded[0]

    (port,) = free_ports(1)
    async with await Meddler(record_or_repeat).start(port, pair.ports["n1"]):
        pair.ports["n1"] = port
        zero, _ = await pair.start("n0", secrets=(SECRET,))
        link = zero.links["n1"]
        await until(lambda: link.is_open, "dialed through the meddler")
        first = link.seals
        zero.send("n1", TransferRequest(1, "n0"))
        await until(lambda: ear1.messages, "heard")
        assert link._dialed is not None
        link._dialed.abort()
        await until(lambda: link.is_open and link.seals is not first, "dialed again")
        assert not one.refused_count
        zero.send("n1", TransferRequest(1, "n0"))
        await until(lambda: one.refused_count, "found out")
        await zero.close()
    assert len(ear1.messages) == 1
    assert "this frame was not sent by the peer as it came here" in caplog.text


# ---- replacing the secret


def all_of(*lists: list[Any]) -> bool:
    """Whether none is empty."""
    return all(lists)


async def test_a_secret_is_replaced_member_by_member(pair: Pair) -> None:
    steps: list[Secrets] = [
        (SECRET,), (SECRET, OTHER_SECRET), (OTHER_SECRET, SECRET), (OTHER_SECRET,),
    ]  # fmt: skip
    for before, after in itertools.pairwise(steps):
        for zero_has, one_has in ((before, after), (after, before)):
            (zero, ear0), (one, ear1) = (
                await pair.start("n0", secrets=zero_has),
                await pair.start("n1", secrets=one_has),
            )
            await until(functools.partial(all_of, ear0.joined, ear1.joined), "both joined")
            zero.send("n1", TransferRequest(1, "n0"))
            one.send("n0", TransferRequest(2, "n1"))
            await until(functools.partial(all_of, ear0.messages, ear1.messages), "heard")
            await zero.close()
            await one.close()


# ---- the file


def test_secrets_are_read_without_the_white_space_around_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b" " + SECRET + b"\n\n" + OTHER_SECRET + b"\r\n")
    path.chmod(0o600)
    assert read_secrets(path) == (SECRET, OTHER_SECRET)
    assert not caplog.records
    path.chmod(0o644)
    assert read_secrets(path) == (SECRET, OTHER_SECRET)
    assert "every user of this machine can read the secret" in caplog.text


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"short" * 6, b"long" * 1025, SECRET + b"\nshort", b"\n".join([SECRET] * 5)]
)
def test_a_secret_of_another_length_is_refused_and_not_shown(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(text)
    with pytest.raises(SecretFileError, match="does not hold 32 to 4096 bytes in a line, 4 lines at most") as raised:
        read_secrets(path)
    assert not any(part in str(raised.value).encode() for part in (b"short", b"longlong", SECRET))


def test_a_secret_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecretFileError, match=r".*/none cannot be read: No such file"):
        read_secrets(tmp_path / "none")
