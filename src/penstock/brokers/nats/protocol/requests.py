"""Requests to JetStream's API and the answers to them, and to what was published."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.brokers.nats.protocol.errors import Missing, api_error, no_responders
from penstock.brokers.nats.protocol.frames import nonsense
from penstock.brokers.nats.protocol.headers import NO_RESPONDERS, status_of
from penstock.clock import NS
from penstock.errors import InternalError, PenstockError, TopicNotFoundError, UnavailableError

_API = "$JS.API."


def api_subject(name: str) -> str:
    """Where a request such as `STREAM.INFO.orders` goes."""
    return _API + name


def direct_get(stream: str) -> str:
    return f"{_API}DIRECT.GET.{stream}"


def next_message(stream: str, consumer: str) -> str:
    return f"{_API}CONSUMER.MSG.NEXT.{stream}.{consumer}"


def unpin(stream: str, consumer: str, group: str) -> bytes:
    """An operation that lets another client of a group be served; nobody waits for its answer."""
    subject = f"{_API}CONSUMER.UNPIN.{stream}.{consumer}".encode()
    return publish_operation(subject, b"", b"", encode_request({"group": group}))


def nak(delay: float) -> bytes:
    """Bring a delivery back, after so many seconds."""
    return b'-NAK {"delay": %d}' % int(delay * NS) if delay else b"-NAK"


def nak_delay(answer: bytes) -> float:
    """After how many seconds such an answer brings a delivery back."""
    delay = answer.partition(b":")[2].strip(b" }")
    return int(delay) / NS if delay else 0.0


def encode_request(body: object) -> bytes:
    return msgspec.json.encode(body) if body is not None else b""


def decode_answer(payload: bytes, missing: Missing | None = None) -> dict[str, Any]:
    """The answer to a request; its error is raised."""
    try:
        decoded = msgspec.json.decode(payload, type=dict[str, Any])
        refusal = msgspec.convert(decoded.get("error"), dict[str, Any] | None)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise nonsense("an answer that cannot be read") from None
    if refusal is not None:
        raise api_error(refusal, missing)
    return decoded


def check_responders(block: bytes, unanswered: Missing = no_responders) -> None:
    """Raise when a header block says that nobody was there to answer."""
    if block and status_of(block)[0] == NO_RESPONDERS:
        raise unanswered()


class Ack(msgspec.Struct):
    """The answer to a message that was published, or to a batch of them."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    batch: str = ""
    count: int = 0
    error: dict[str, object] | None = None


_decode_ack = msgspec.json.Decoder(Ack).decode


def decode_ack(payload: bytes) -> Ack:
    try:
        return _decode_ack(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise nonsense("an answer that cannot be read") from None


def stored(topic: str, block: bytes, payload: bytes) -> Ack | PenstockError:
    """What became of one message, from header block and payload of the answer."""
    if block:
        code, text = status_of(block)
        if code == NO_RESPONDERS:
            return TopicNotFoundError(topic)
        return InternalError(f"The NATS server answered {code} {text}")
    try:
        ack = decode_ack(payload)
    except UnavailableError as error:
        return error
    if ack.error is not None:
        return api_error(ack.error, lambda: TopicNotFoundError(topic))
    return ack


def publish_operation(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """PUB or HPUB, complete. `header` is a whole block or empty; `reply` may be empty."""
    space = b" " if reply else b""
    if not header:
        return b"PUB %b %b%b%d\r\n%b\r\n" % (subject, reply, space, len(payload), payload)
    size = len(header)
    return b"HPUB %b %b%b%d %d\r\n%b%b\r\n" % (
        subject,
        reply,
        space,
        size,
        size + len(payload),
        header,
        payload,
    )
