"""Every failure as a class, with a number, a name, and what is known about its outcome.

    >>> from myqueue import errors
    >>> errors.UnknownTopic.code, errors.UnknownTopic.retriable
    (1210, False)

`base` has the base classes, `storage` the errors of the storage engine (11xx), `gateway` those of
the HTTP gateway (126x), `table` all others and `TABLE`, which maps each code to its class. Import
the names from this package. Comes in: a code and a text from the wire. Goes out: an exception that
says whether the same call may succeed later (`retriable`) and whether it may have been done
(`outcome`). Every folder may import this package; it imports the standard library only.
"""

from myqueue.errors.table import NONE as NONE
from myqueue.errors.table import TABLE as TABLE
from myqueue.errors.table import UNKNOWN as UNKNOWN
from myqueue.errors.table import AppendGap as AppendGap
from myqueue.errors.table import BatchInvalid as BatchInvalid
from myqueue.errors.table import BatchUnreadable as BatchUnreadable
from myqueue.errors.table import BodyTooLarge as BodyTooLarge
from myqueue.errors.table import BrokerInUse as BrokerInUse
from myqueue.errors.table import BufferFull as BufferFull
from myqueue.errors.table import Busy as Busy
from myqueue.errors.table import Closed as Closed
from myqueue.errors.table import ClusterMismatch as ClusterMismatch
from myqueue.errors.table import ConcurrentUse as ConcurrentUse
from myqueue.errors.table import CorruptData as CorruptData
from myqueue.errors.table import DeliveryFailed as DeliveryFailed
from myqueue.errors.table import DirectoryLocked as DirectoryLocked
from myqueue.errors.table import DirectoryUnusable as DirectoryUnusable
from myqueue.errors.table import DiskFull as DiskFull
from myqueue.errors.table import EntryBackwards as EntryBackwards
from myqueue.errors.table import EntryInvalid as EntryInvalid
from myqueue.errors.table import EntryMissing as EntryMissing
from myqueue.errors.table import FailedRecord as FailedRecord
from myqueue.errors.table import Fenced as Fenced
from myqueue.errors.table import Forbidden as Forbidden
from myqueue.errors.table import Forked as Forked
from myqueue.errors.table import FormatUnknown as FormatUnknown
from myqueue.errors.table import GreetFirst as GreetFirst
from myqueue.errors.table import GroupExists as GroupExists
from myqueue.errors.table import GroupInUse as GroupInUse
from myqueue.errors.table import GroupUnknown as GroupUnknown
from myqueue.errors.table import IdentityMismatch as IdentityMismatch
from myqueue.errors.table import Internal as Internal
from myqueue.errors.table import InvalidName as InvalidName
from myqueue.errors.table import InvalidRequest as InvalidRequest
from myqueue.errors.table import InvalidSetting as InvalidSetting
from myqueue.errors.table import JournalBusy as JournalBusy
from myqueue.errors.table import JournalStopped as JournalStopped
from myqueue.errors.table import KeyReused as KeyReused
from myqueue.errors.table import Malformed as Malformed
from myqueue.errors.table import MessageTooLarge as MessageTooLarge
from myqueue.errors.table import MethodNotAllowed as MethodNotAllowed
from myqueue.errors.table import MisuseError as MisuseError
from myqueue.errors.table import MyQueueError as MyQueueError
from myqueue.errors.table import NoQuorum as NoQuorum
from myqueue.errors.table import NotFound as NotFound
from myqueue.errors.table import NotLeader as NotLeader
from myqueue.errors.table import NotReady as NotReady
from myqueue.errors.table import OffsetOutOfRange as OffsetOutOfRange
from myqueue.errors.table import OutcomeUnknown as OutcomeUnknown
from myqueue.errors.table import OutOfSequence as OutOfSequence
from myqueue.errors.table import PartitionExists as PartitionExists
from myqueue.errors.table import PlaceInvalid as PlaceInvalid
from myqueue.errors.table import RecordTooLarge as RecordTooLarge
from myqueue.errors.table import StateInvalid as StateInvalid
from myqueue.errors.table import Stopping as Stopping
from myqueue.errors.table import StoreBroken as StoreBroken
from myqueue.errors.table import TimedOut as TimedOut
from myqueue.errors.table import TooFewBrokers as TooFewBrokers
from myqueue.errors.table import TooManyWaiting as TooManyWaiting
from myqueue.errors.table import TopicDeleted as TopicDeleted
from myqueue.errors.table import TopicExists as TopicExists
from myqueue.errors.table import TroubleError as TroubleError
from myqueue.errors.table import Unauthorized as Unauthorized
from myqueue.errors.table import UnknownBroker as UnknownBroker
from myqueue.errors.table import UnknownClient as UnknownClient
from myqueue.errors.table import UnknownGroup as UnknownGroup
from myqueue.errors.table import UnknownMember as UnknownMember
from myqueue.errors.table import UnknownPartition as UnknownPartition
from myqueue.errors.table import UnknownTopic as UnknownTopic
from myqueue.errors.table import Unreachable as Unreachable
from myqueue.errors.table import Unsupported as Unsupported
from myqueue.errors.table import WrongProcess as WrongProcess
from myqueue.errors.table import WrongThread as WrongThread
from myqueue.errors.table import WrongTopic as WrongTopic
from myqueue.errors.table import error_of as error_of

# Tracebacks name a class by the package from which applications import it.
for _kind in [kind for kind in globals().values() if isinstance(kind, type)]:
    _kind.__module__ = __name__
