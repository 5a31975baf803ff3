"""The table of all errors: `TABLE` maps each code to its exception class.

The table is the source for the wire protocol, the gateway's status codes, `myq explain` and the
documents. Two attributes decide what a caller may do:

- `retriable`: the same call may succeed later without a change by the caller.
- `outcome`: "none" means certainly not done, "unknown" means that it may have been done. An
  unknown outcome is never reported as "none".

A `MisuseError` is corrected in the calling code. A `TroubleError` passes by waiting or repeating,
or needs an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from myqueue.errors.base import NONE as NONE
from myqueue.errors.base import UNKNOWN as UNKNOWN
from myqueue.errors.base import MisuseError as MisuseError
from myqueue.errors.base import MyQueueError as MyQueueError
from myqueue.errors.base import TroubleError as TroubleError
from myqueue.errors.gateway import BodyTooLarge as BodyTooLarge
from myqueue.errors.gateway import Forbidden as Forbidden
from myqueue.errors.gateway import Malformed as Malformed
from myqueue.errors.gateway import MethodNotAllowed as MethodNotAllowed
from myqueue.errors.gateway import NotFound as NotFound
from myqueue.errors.gateway import Stopping as Stopping
from myqueue.errors.gateway import TooManyWaiting as TooManyWaiting
from myqueue.errors.gateway import Unauthorized as Unauthorized
from myqueue.errors.storage import AppendGap as AppendGap
from myqueue.errors.storage import CorruptData as CorruptData
from myqueue.errors.storage import DirectoryLocked as DirectoryLocked
from myqueue.errors.storage import DirectoryUnusable as DirectoryUnusable
from myqueue.errors.storage import DiskFull as DiskFull
from myqueue.errors.storage import EntryBackwards as EntryBackwards
from myqueue.errors.storage import EntryInvalid as EntryInvalid
from myqueue.errors.storage import EntryMissing as EntryMissing
from myqueue.errors.storage import FormatUnknown as FormatUnknown
from myqueue.errors.storage import GroupExists as GroupExists
from myqueue.errors.storage import GroupUnknown as GroupUnknown
from myqueue.errors.storage import IdentityMismatch as IdentityMismatch
from myqueue.errors.storage import JournalBusy as JournalBusy
from myqueue.errors.storage import JournalStopped as JournalStopped
from myqueue.errors.storage import PlaceInvalid as PlaceInvalid
from myqueue.errors.storage import RecordTooLarge as RecordTooLarge
from myqueue.errors.storage import StateInvalid as StateInvalid
from myqueue.errors.storage import StoreBroken as StoreBroken
from myqueue.errors.storage import WrongProcess as WrongProcess
from myqueue.errors.storage import WrongThread as WrongThread

# -- 12xx: the cluster and its clients ------------------------------------------------------------


class InvalidRequest(MisuseError):
    """An argument is not of the expected kind or range, or a message on the wire is malformed."""

    code, name = 1200, "INVALID_REQUEST"

    def __init__(self, message: str = "", *, request: int | None = None, **more: str) -> None:
        super().__init__(message, **more)
        self.request = request  # the id to answer to, if it could be read


class Unsupported(InvalidRequest):
    """The client and the daemon speak different versions, or the daemon lacks this request."""

    code, name = 1201, "UNSUPPORTED"
    hint = "Use the same version of myqueue on both sides."


class InvalidName(MisuseError):
    """A name may have 1 to 200 letters, digits, dots, dashes and underscores; this one differs."""

    code, name = 1202, "INVALID_NAME"
    hint = "Use 1 to 200 of A-Z a-z 0-9 . _ -"


class InvalidSetting(MisuseError):
    """A setting or constructor argument does not exist, or its value is out of range."""

    code, name = 1203, "INVALID_SETTING"
    hint = "See 'myq config show' for every setting, its unit and its default."


class BatchInvalid(MisuseError):
    """A batch is damaged or not of a known form. Nothing of it was stored."""

    code, name = 1204, "BATCH_INVALID"
    hint = "Send it again; if it happens often, check memory and network of the sender."


class BatchUnreadable(CorruptData):
    """A stored batch cannot be unpacked, although it is stored exactly as its producer sent it.

    `topic`, `partition`, `offset` (of its first message) and `next_offset` (after its last one)
    name the batch, so that a consumer can seek past it. `messages`: of a take, all other messages
    that were taken with it.
    """

    code, name, http_status = 1207, "BATCH_UNREADABLE", 500
    hint = "Choose on_damaged=skip: its messages are passed over and counted."
    topic, partition, offset, next_offset = "", -1, -1, -1
    messages: tuple[Any, ...] = ()
    facts: Mapping[str, Any] = MappingProxyType({})  # more fields for a gateway's answer

    @classmethod
    def at(
        cls, topic: str, partition: int, offset: int, count: int, why: Exception, **more: str
    ) -> BatchUnreadable:
        """Make the error for the batch of `count` messages whose first has this offset."""
        last = offset + count - 1
        error = cls(f"{topic}/{partition}: offsets {offset} to {last} can't be read: {why}", **more)
        error.topic, error.partition = topic, partition
        error.offset, error.next_offset = offset, offset + count
        return error


class MessageTooLarge(MisuseError):
    """A message or batch is larger than the topic accepts (`message_bytes_max`)."""

    code, name, http_status = 1205, "MESSAGE_TOO_LARGE", 413
    hint = "Send less at once, or raise message_bytes_max of the topic."


class PartitionExists(MisuseError):
    """The topic already has a partition of this number."""

    code, name, http_status = 1206, "PARTITION_EXISTS", 409
    hint = "Use it as it is; without a number, the next one is added."


class UnknownTopic(MisuseError):
    """There is no topic of this name."""

    code, name, http_status = 1210, "UNKNOWN_TOPIC", 404
    hint = "Create it: 'myq topic create NAME'; 'myq topic list' shows what there is."


class TopicExists(MisuseError):
    """A topic of this name already exists."""

    code, name, http_status = 1211, "TOPIC_EXISTS", 409
    hint = "Use it as it is, or choose another name."


class UnknownPartition(TroubleError):
    """This broker has no replica of the partition: it was moved, deleted, or is being created."""

    code, name, retriable, outcome, http_status = 1212, "UNKNOWN_PARTITION", True, NONE, 404
    hint = "Ask a manager where the partition is; clients do so by themselves."


class UnknownClient(MisuseError):
    """No producer or consumer has this id."""

    code, name, http_status = 1213, "UNKNOWN_CLIENT", 404
    hint = "Register first; ids are given out by the managers."


class WrongTopic(MisuseError):
    """This producer or consumer id was registered for another topic."""

    code, name, http_status = 1214, "WRONG_TOPIC", 409
    hint = "Register a producer or consumer for this topic."


class TooFewBrokers(TroubleError):
    """The cluster has fewer brokers than the replicas that were requested."""

    code, name, retriable, outcome, http_status = 1215, "TOO_FEW_BROKERS", True, NONE, 409
    hint = "Start more brokers ('myq broker list' shows them), or ask for fewer replicas."


class UnknownBroker(MisuseError):
    """No broker of this number is registered."""

    code, name, http_status = 1216, "UNKNOWN_BROKER", 404
    hint = "'myq broker list' shows those that are."


class BrokerInUse(MisuseError):
    """The broker still holds replicas, so it is not removed without `force`."""

    code, name, http_status = 1217, "BROKER_IN_USE", 409
    hint = "Empty it first ('myq broker drain N --wait'), or insist (--force)."


class GroupInUse(MisuseError):
    """The consumer group has members, so it is not reset without `force`, and never deleted."""

    code, name, http_status = 1218, "GROUP_IN_USE", 409
    hint = "Stop its members first, or insist (--force): they go on from the new positions."


class UnknownGroup(MisuseError):
    """No consumer group of this name ever had a member."""

    code, name, http_status = 1219, "UNKNOWN_GROUP", 404
    hint = "'myq group list' shows those that there are."


class NotLeader(TroubleError):
    """This replica is not the leader. Nothing was done."""

    code, name, retriable, outcome, http_status = 1220, "NOT_LEADER", True, NONE, 503
    hint = "Repeat it at the leader; clients do so by themselves."


class NotReady(TroubleError):
    """The leader was elected a moment ago, or the daemon is starting. Nothing was done."""

    code, name, retriable, outcome, http_status = 1221, "NOT_READY", True, NONE, 503
    hint = "Repeat it in a moment; clients do so by themselves."


class NoQuorum(TroubleError):
    """The leader reaches no majority of the replicas, so it cannot write. Nothing was done."""

    code, name, retriable, outcome, http_status = 1222, "NO_QUORUM", True, NONE, 503
    hint = "Start the daemons that are down ('myq status'); work resumes by itself."


class OutcomeUnknown(TroubleError):
    """The leader failed before a majority confirmed the request, so it may have been done."""

    code, name, retriable, http_status = 1223, "OUTCOME_UNKNOWN", True, 504
    hint = "Repeat the same request (same key or sequence): it is done once in all."


class TimedOut(TroubleError, TimeoutError):
    """The deadline of the call passed. A request that was sent may still be done."""

    code, name, retriable, http_status = 1224, "TIMED_OUT", True, 504
    hint = "Check 'myq status'; repeat with the same key, or give it more time."


class Busy(TroubleError):
    """The daemon has too many waiting requests and did not accept this one."""

    code, name, retriable, outcome, http_status = 1225, "BUSY", True, NONE, 429
    hint = "Send slower; clients wait and repeat by themselves."


class Unreachable(TroubleError, ConnectionError):
    """No daemon answered at any of the addresses."""

    code, name, retriable, outcome, http_status = 1226, "UNREACHABLE", True, NONE, 503
    hint = "Is the cluster running? Start one with 'myq up', or name it with --cluster."


class ClusterMismatch(TroubleError):
    """The daemon at this address belongs to another cluster."""

    code, name, outcome, http_status = 1227, "CLUSTER_MISMATCH", NONE, 409
    hint = "Check the address; two clusters share it, or one was created again."


class GreetFirst(TroubleError):
    """A daemon sent a message before its greeting; it greets and goes on by itself."""

    code, name, retriable, outcome = 1228, "GREET_FIRST", True, NONE
    hint = "Nothing: the daemons repeat it by themselves."


class Fenced(TroubleError):
    """A newer session of the same producer or consumer took over, so this one is refused."""

    code, name, outcome, http_status = 1230, "FENCED", NONE, 409
    hint = "Another process uses this name; give each its own, or stop one."


class OutOfSequence(TroubleError):
    """The partition lacks an earlier batch of this producer, so it did not store this one."""

    code, name, outcome, http_status = 1231, "OUT_OF_SEQUENCE", NONE, 409
    hint = "Open a new producer; messages that were not acknowledged are named in its errors."


class KeyReused(MisuseError):
    """A different request was already sent with this idempotency key."""

    code, name, http_status = 1233, "KEY_REUSED", 409
    hint = "Draw a new key for each new request; repeat one only with the same content."


class UnknownMember(TroubleError):
    """The session of this group member ended; its partitions belong to other members."""

    code, name, outcome, http_status = 1234, "UNKNOWN_MEMBER", NONE, 409
    hint = "Join again; consumers do so by themselves."


class OffsetOutOfRange(MisuseError):
    """The offset is before the start or after the end of the partition."""

    code, name, http_status = 1232, "OFFSET_OUT_OF_RANGE", 400
    hint = "Seek to the start or the end, or choose what should happen: on_out_of_range=…"


class TopicDeleted(UnknownTopic):
    """The topic was deleted while this client used it. A new topic of the same name is another."""

    code, name = 1245, "TOPIC_DELETED"
    hint = "Poll or send again: if the topic is created again, the call uses the new one."


class BufferFull(TroubleError):
    """The producer's buffer stayed full for `max_block_ms`. The message was not accepted."""

    code, name, retriable, outcome, http_status = 1240, "BUFFER_FULL", True, NONE, 429
    hint = "Send slower, or raise max_buffered_bytes; is the cluster reachable?"


class FailedRecord(NamedTuple):
    """A message that was not delivered; with `error.outcome` "unknown" it may be stored."""

    topic: str
    partition: int
    value: bytes
    key: bytes | None
    headers: dict[str, bytes] | None
    error: MyQueueError


class DeliveryFailed(TroubleError):
    """Some messages were not delivered.

    `messages`: how many. `failed`: a FailedRecord(topic, partition, value, key, headers, error) for
    each. After `flush` and `close` these are only the last ones, if all together have more than 8
    MiB.
    """

    code, name = 1241, "DELIVERY_FAILED"
    hint = "Look at the error of each message in `failed`; send again what may be stored twice."

    def __init__(
        self,
        message: str = "",
        *,
        failed: tuple[FailedRecord, ...] = (),
        messages: int | None = None,
        **more: str,
    ) -> None:
        super().__init__(message, **more)
        self.failed = failed
        self.messages = len(failed) if messages is None else messages


class Closed(MisuseError):
    """The client was closed and takes no more calls."""

    code, name = 1242, "CLOSED"
    hint = "Make a new one."


class Forked(MisuseError):
    """A forked child used a client of its parent process; sockets cannot be shared."""

    code, name = 1243, "FORKED"
    hint = "Make clients in the process that uses them, after the fork."


class ConcurrentUse(MisuseError):
    """Two threads called one consumer at once, or a callback of the I/O thread would wait."""

    code, name = 1244, "CONCURRENT_USE"
    hint = "Give each thread a consumer of its own, or hand messages over by a queue."


class Internal(TroubleError):
    """A bug in myqueue. The daemon logged it with its trace."""

    code, name = 1290, "INTERNAL"
    hint = "Please report it with the daemon's log."


def error_of(
    code: int, message: str = "", component: str = "", details: Mapping[str, Any] | None = None
) -> MyQueueError:
    """Make the exception for a code from the wire; a newer daemon may send an unknown code.

    `details` may have its `message` and its `hint`.
    """
    details = details or {}
    text = message or str(details.get("message", ""))
    error = TABLE.get(code, TroubleError)(text, component=component)
    if code not in TABLE:
        error.code = code
    if details:
        error.details = details
    hint = details.get("hint")
    if isinstance(hint, str) and hint:
        error.hint = hint
    return error


def _rows(base: type[MyQueueError]) -> list[type[MyQueueError]]:
    return [base] + [row for child in base.__subclasses__() for row in _rows(child)]


TABLE: dict[int, type[MyQueueError]] = {row.code: row for row in _rows(MyQueueError)}
