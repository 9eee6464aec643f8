"""Callers that send several messages by one request: each must be committed at its own place of the batch's."""

from chaos.sim.stack.callers import Caller, field_of
from chaos.sim.stack.clients import QUEUES, TOPICS
from ledgermq.message.batch import encode_batch
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode


class BatchCaller(Caller):
    """Sends batches to any member, and reads as the others do."""

    def _ask(self) -> None:
        self._begin(self._send_batch() if self._dice.random() < 0.7 else self._pull())

    async def _send_batch(self) -> None:
        topic, queue_id = TOPICS[self._pick(len(TOPICS))], self._pick(QUEUES)
        bodies = [b"%d " % self._cluster.next_message() + b"." * self._pick(60) for _ in range(2 + self._pick(6))]
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 0, "h": 0, "i": "", "j": 0}
        fields |= {"k": "false", "m": "true"}
        body = encode_batch((0, body, b"") for body in bodies)
        answer, way = await self._request(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            self._cluster.mark(f"batch refused: {answer.ext.get('cause', answer.code)}")
            return
        self._cluster.mark(f"batch acknowledged {way}")
        first = int(field_of(answer, "queueOffset"))
        places = [int(text[-16:], 16) for text in field_of(answer, "msgId").split(",")]
        for number, (at, sent) in enumerate(zip(places, bodies, strict=True)):
            self._expect((topic, queue_id), first + number, at, sent, "acknowledged")
