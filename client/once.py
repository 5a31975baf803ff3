"""Messages that are stored once, however often and through whomever they are sent.

A producer's own repeats are told by its sequences, as long as it lives. Who may be ended between
sending and hearing the answer (a gateway, a job that is started again) gives its request an *id*
instead; the batch carries it (PROTOCOL.md, section 4), and the partition remembers for a quarter of
an hour where it put it. The same id with other messages is refused if their number differs.

Where a message goes that names neither key nor partition is decided by the id alone, so that a
repeat finds the same partition: by a hash that moves as few ids as possible when a topic grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from myqueue import batch
from myqueue.clock import wall_ms
from myqueue.delivery import RecordMetadata
from myqueue.errors import NONE, UNKNOWN, InvalidRequest, MyQueueError
from myqueue.intake import check_size, plain
from myqueue.leading import ask_leader
from myqueue.partitioner import partition_of, settled
from myqueue.places import Place
from myqueue.protocol import PRODUCE
from myqueue.session import Session

ID_BYTES: Final = 16
FIRST_BIT: Final = 1 << 63
Messages = tuple[list[int], list[bytes], list[bytes | None] | None]  # places in the list, …


def send_once(
    session: Session, place: Place, values: list[bytes], keys: Sequence[bytes | str | None] | None,
    partition: int | None, request_id: bytes, codec: int, timeout_ms: int,
) -> list[RecordMetadata]:  # fmt: skip
    """Where each message is. Waits; from any thread but the I/O thread."""
    if type(request_id) is not bytes or len(request_id) != ID_BYTES:
        raise InvalidRequest(f"an id is {ID_BYTES} bytes")
    if not values or (keys is not None and len(keys) != len(values)):
        raise InvalidRequest(f"{len(values)} messages, {len(keys or ())} keys")
    given = None if keys is None else [None if key is None else plain(key, "key") for key in keys]
    asked = [
        (number, messages[0], _ask(session, place, number, messages, request_id, codec, timeout_ms))
        for number, messages in _by_partition(place, values, given, partition, request_id).items()
    ]
    found: list[Any] = [None] * len(values)
    errors: list[MyQueueError] = []
    for number, at, future in asked:
        try:
            offset, stored_ms = session.wait(future)
        except MyQueueError as problem:
            errors.append(problem)
            continue
        for step, index in enumerate(at):
            found[index] = RecordMetadata(place.topic.name, number, offset + step, stored_ms)
    for error in errors:
        if len(errors) < len(asked) or any(one.outcome != NONE for one in errors):
            error.outcome = UNKNOWN  # of the list
        raise error
    return found


def _by_partition(
    place: Place, values: list[bytes], keys: list[bytes | None] | None, partition: int | None,
    request_id: bytes,
) -> dict[int, Messages]:  # fmt: skip
    count = len(place.lanes)
    if partition is not None and not 0 <= partition < count:
        raise InvalidRequest(f"{place.topic.name} has partitions 0 to {count - 1}, not {partition}")
    others = settled(request_id, count) if partition is None else partition
    if keys is None:
        return {others: (list(range(len(values))), values, None)}
    found: dict[int, Messages] = {}
    for index, (value, key) in enumerate(zip(values, keys, strict=True)):
        number = others if partition is not None or key is None else partition_of(key, count)
        at, some, theirs = found.setdefault(number, ([], [], []))
        at.append(index)
        some.append(value)
        if theirs is not None:
            theirs.append(key)
    return found


def _ask(
    session: Session, place: Place, number: int, messages: Messages, request_id: bytes, codec: int,
    timeout_ms: int,
) -> Future[Any]:  # fmt: skip
    _, values, keys = messages
    data = batch.make(
        (values, keys, None, None), wall_ms(), codec=codec,
        producer=int.from_bytes(request_id[:8], "big") | FIRST_BIT, epoch=batch.KEYED_EPOCH,
        sequence=int.from_bytes(request_id[8:], "big"),
    )  # fmt: skip
    check_size(len(data) - batch.HEADER_BYTES, place.limit + 64, place.topic.name)
    partition = place.topic.partitions[number]
    return ask_leader(
        session, partition, PRODUCE, ([partition.group],), [data], timeout_ms=timeout_ms
    )
