"""Every failure has a number, a name, and says what is known about its outcome.

One table, `TABLE`, is the source for the wire protocol, the gateway's status codes, `myq explain`
and the documents. An exception class is one row of it. Two questions decide what a caller may do:

- `retriable`: may the same call succeed later without anybody changing it?
- `outcome`: "none" means certainly not done, "unknown" means it may have been done. An unknown
  outcome is never reported as a failure that left no trace.

Misuse by the caller (`MisuseError`) and trouble elsewhere (`TroubleError`) are different classes:
the first is mended in the calling code, the second by waiting, retrying or an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
    """A message on the wire is malformed, or an argument has no meaning."""

    code, name = 1200, "INVALID_REQUEST"

    def __init__(self, message: str = "", *, request: int | None = None, **more: str) -> None:
        super().__init__(message, **more)
        self.request = request  # the id to answer to, if it could be read


class Unsupported(InvalidRequest):
    """The other side speaks another version, or knows no such request."""

    code, name = 1201, "UNSUPPORTED"
    hint = "Use the same version of myqueue on both sides."


class InvalidName(MisuseError):
    """Names have 1 to 200 letters, digits, dots, dashes and underscores."""

    code, name = 1202, "INVALID_NAME"
    hint = "Use 1 to 200 of A-Z a-z 0-9 . _ -"


class InvalidSetting(MisuseError):
    """A setting is not known, or its value is out of range."""

    code, name = 1203, "INVALID_SETTING"
    hint = "See 'myq config show' for every setting, its unit and its default."


class BatchInvalid(MisuseError):
    """A batch is damaged or not of a known form; nothing of it was stored."""

    code, name = 1204, "BATCH_INVALID"
    hint = "Send it again; if it happens often, check memory and network of the sender."


class BatchUnreadable(CorruptData):
    """A batch is stored as its producer sent it, and nobody can unpack its messages."""

    code, name, http_status = 1207, "BATCH_UNREADABLE", 500
    hint = "Choose on_damaged=skip: its messages are passed over and counted."
    topic, partition, offset, next_offset = "", -1, -1, -1
    messages: tuple[Any, ...] = ()  # of a take: all others that were taken with it
    facts: Mapping[str, Any] = MappingProxyType({})  # that a gateway tells besides

    @classmethod
    def at(
        cls, topic: str, partition: int, offset: int, count: int, why: Exception, **more: str
    ) -> BatchUnreadable:
        """The batch of `count` messages whose first one has this offset."""
        last = offset + count - 1
        error = cls(f"{topic}/{partition}: offsets {offset} to {last} can't be read: {why}", **more)
        error.topic, error.partition = topic, partition
        error.offset, error.next_offset = offset, offset + count
        return error


class MessageTooLarge(MisuseError):
    """A message or batch is larger than the topic accepts."""

    code, name, http_status = 1205, "MESSAGE_TOO_LARGE", 413
    hint = "Send less at once, or raise message_bytes_max of the topic."


class PartitionExists(MisuseError):
    """The topic has a partition of this number already."""

    code, name, http_status = 1206, "PARTITION_EXISTS", 409
    hint = "Use it as it is; without a number, the next one is added."


class UnknownTopic(MisuseError):
    """There is no topic of this name."""

    code, name, http_status = 1210, "UNKNOWN_TOPIC", 404
    hint = "Create it: 'myq topic create NAME'; 'myq topic list' shows what there is."


class TopicExists(MisuseError):
    """A topic of this name exists already."""

    code, name, http_status = 1211, "TOPIC_EXISTS", 409
    hint = "Use it as it is, or choose another name."


class UnknownPartition(TroubleError):
    """No replica of this partition is here; it was moved, deleted, or is being made."""

    code, name, retriable, outcome, http_status = 1212, "UNKNOWN_PARTITION", True, NONE, 404
    hint = "Ask a manager where the partition is; clients do so by themselves."


class UnknownClient(MisuseError):
    """No producer or consumer has this id."""

    code, name, http_status = 1213, "UNKNOWN_CLIENT", 404
    hint = "Register first; ids are given out by the managers."


class WrongTopic(MisuseError):
    """This id was registered for another topic."""

    code, name, http_status = 1214, "WRONG_TOPIC", 409
    hint = "Register a producer or consumer for this topic."


class TooFewBrokers(TroubleError):
    """Fewer brokers are known than the replicas asked for."""

    code, name, retriable, outcome, http_status = 1215, "TOO_FEW_BROKERS", True, NONE, 409
    hint = "Start more brokers ('myq broker list' shows them), or ask for fewer replicas."


class UnknownBroker(MisuseError):
    """No broker of this number is registered."""

    code, name, http_status = 1216, "UNKNOWN_BROKER", 404
    hint = "'myq broker list' shows those that are."


class BrokerInUse(MisuseError):
    """A broker that holds replicas is not removed, unless that is insisted on."""

    code, name, http_status = 1217, "BROKER_IN_USE", 409
    hint = "Empty it first ('myq broker drain N --wait'), or insist (--force)."


class GroupInUse(MisuseError):
    """A consumer group with members is not reset, unless that is insisted on."""

    code, name, http_status = 1218, "GROUP_IN_USE", 409
    hint = "Stop its members first, or insist (--force): they go on from the new positions."


class UnknownGroup(MisuseError):
    """No consumer group of this name ever had a member."""

    code, name, http_status = 1219, "UNKNOWN_GROUP", 404
    hint = "'myq group list' shows those that there are."


class NotLeader(TroubleError):
    """Another replica leads; certainly nothing was done."""

    code, name, retriable, outcome, http_status = 1220, "NOT_LEADER", True, NONE, 503
    hint = "Repeat it at the leader; clients do so by themselves."


class NotReady(TroubleError):
    """A leader that was elected a moment ago, or a daemon that is starting."""

    code, name, retriable, outcome, http_status = 1221, "NOT_READY", True, NONE, 503
    hint = "Repeat it in a moment; clients do so by themselves."


class NoQuorum(TroubleError):
    """No majority of the replicas can be reached, so nothing can be changed. Nothing was done."""

    code, name, retriable, outcome, http_status = 1222, "NO_QUORUM", True, NONE, 503
    hint = "Start the daemons that are down ('myq status'); work resumes by itself."


class OutcomeUnknown(TroubleError):
    """It was begun, and its leader was lost before a majority confirmed: it may have been done."""

    code, name, retriable, http_status = 1223, "OUTCOME_UNKNOWN", True, 504
    hint = "Repeat the same request (same key or sequence): it is done once in all."


class TimedOut(TroubleError, TimeoutError):
    """The deadline passed; what was under way may still be done."""

    code, name, retriable, http_status = 1224, "TIMED_OUT", True, 504
    hint = "Check 'myq status'; repeat with the same key, or give it more time."


class Busy(TroubleError):
    """Too much waits already; nothing was taken."""

    code, name, retriable, outcome, http_status = 1225, "BUSY", True, NONE, 429
    hint = "Send slower; clients wait and repeat by themselves."


class Unreachable(TroubleError, ConnectionError):
    """No daemon answered at any of the addresses."""

    code, name, retriable, outcome, http_status = 1226, "UNREACHABLE", True, NONE, 503
    hint = "Is the cluster running? Start one with 'myq up', or name it with --cluster."


class ClusterMismatch(TroubleError):
    """The other side belongs to another cluster."""

    code, name, outcome, http_status = 1227, "CLUSTER_MISMATCH", NONE, 409
    hint = "Check the address; two clusters share it, or one was made anew."


class GreetFirst(TroubleError):
    """A peer spoke before it said who it is; it will greet and go on."""

    code, name, retriable, outcome = 1228, "GREET_FIRST", True, NONE


class Fenced(TroubleError):
    """A newer session of the same producer or consumer took over."""

    code, name, outcome, http_status = 1230, "FENCED", NONE, 409
    hint = "Another process uses this name; give each its own, or stop one."


class OutOfSequence(TroubleError):
    """An earlier batch of this producer is missing; nothing was stored."""

    code, name, outcome, http_status = 1231, "OUT_OF_SEQUENCE", NONE, 409
    hint = "Open a new producer; messages that were not acknowledged are named in its errors."


class KeyReused(MisuseError):
    """A request with this key came before, and it was another one."""

    code, name, http_status = 1233, "KEY_REUSED", 409
    hint = "Draw a new key for each new request; repeat one only with the same content."


class UnknownMember(TroubleError):
    """The session of this member of a group ended; what it had belongs to others."""

    code, name, outcome, http_status = 1234, "UNKNOWN_MEMBER", NONE, 409
    hint = "Join again; consumers do so by themselves."


class OffsetOutOfRange(MisuseError):
    """The offset is before the start or behind the end of the partition."""

    code, name, http_status = 1232, "OFFSET_OUT_OF_RANGE", 400
    hint = "Seek to the start or the end, or choose what should happen: on_out_of_range=…"


class TopicDeleted(UnknownTopic):
    """The topic was deleted while this client used it. One of the same name is another topic."""

    code, name = 1245, "TOPIC_DELETED"
    hint = "Poll or send again: if the topic is made again, that goes on with the new one."


class BufferFull(TroubleError):
    """The producer's buffer stayed full for as long as it was allowed to wait."""

    code, name, retriable, outcome, http_status = 1240, "BUFFER_FULL", True, NONE, 429
    hint = "Send slower, or raise max_buffered_bytes; is the cluster reachable?"


class DeliveryFailed(TroubleError):
    """Some messages were not delivered; `failed` has each with its error."""

    code, name = 1241, "DELIVERY_FAILED"

    def __init__(self, message: str = "", *, failed: tuple[object, ...] = (), **more: str) -> None:
        super().__init__(message, **more)
        self.failed = failed


class Closed(MisuseError):
    """It was closed; nothing more can be asked of it."""

    code, name = 1242, "CLOSED"
    hint = "Make a new one."


class Forked(MisuseError):
    """A client made before a fork is used after it, in the child; sockets can't be shared."""

    code, name = 1243, "FORKED"
    hint = "Make clients in the process that uses them, after the fork."


class ConcurrentUse(MisuseError):
    """A consumer belongs to one thread at a time."""

    code, name = 1244, "CONCURRENT_USE"
    hint = "Give each thread a consumer of its own, or hand messages over by a queue."


class Internal(TroubleError):
    """A mistake in this program; it is logged with its trace."""

    code, name = 1290, "INTERNAL"
    hint = "Please report it with the daemon's log."


def error_of(code: int, message: str = "", component: str = "") -> MyQueueError:
    """The exception for a code that came over the wire; unknown ones from newer daemons too."""
    error = TABLE.get(code, TroubleError)(message, component=component)
    if code not in TABLE:
        error.code = code
    return error


def _rows(base: type[MyQueueError]) -> list[type[MyQueueError]]:
    return [base] + [row for child in base.__subclasses__() for row in _rows(child)]


TABLE: dict[int, type[MyQueueError]] = {row.code: row for row in _rows(MyQueueError)}
