"""Errors 11xx of the storage engine; `errors.table` has the table of all errors."""

from __future__ import annotations

from myqueue.errors.base import NONE, UNKNOWN, MisuseError, TroubleError


class AppendGap(MisuseError):
    """An append skipped or repeated an index; it must continue the raft group's log."""

    code, name = 1101, "APPEND_GAP"
    hint = "Truncate or reset the group's log first, or send the missing entries."


class GroupUnknown(MisuseError):
    """This journal has no raft group of this uid: it was never created, or it was removed."""

    code, name, http_status = 1102, "GROUP_UNKNOWN", 404
    hint = "Create the group before writing to it."


class GroupExists(MisuseError):
    """A raft group of this uid was already created; a uid is never used twice."""

    code, name, http_status = 1103, "GROUP_EXISTS", 409
    hint = "Draw a new uid for a new incarnation of a group."


class RecordTooLarge(MisuseError):
    """One record is larger than the journal accepts."""

    code, name, http_status = 1104, "RECORD_TOO_LARGE", 413
    hint = "Send smaller batches, or raise segment_bytes."


class EntryInvalid(MisuseError):
    """A field of a log entry is out of range, or its payload is not contiguous bytes."""

    code, name = 1105, "ENTRY_INVALID"
    hint = "Pass bytes (or a view of single bytes) and numbers from 0 to 2^64 - 1."


class WrongThread(MisuseError):
    """Another thread than the journal's first user called it; this would tear its records."""

    code, name = 1106, "WRONG_THREAD"
    hint = "Hand the work to the thread that owns the journal."


class WrongProcess(MisuseError):
    """A forked child used a log of its parent; a log belongs to the process that opened it."""

    code, name = 1107, "WRONG_PROCESS"
    hint = "Open the log after the fork, or start the other process with spawn."


class EntryBackwards(MisuseError):
    """The entry's term or offset is lower than its predecessor's; in a log they never fall."""

    code, name = 1108, "ENTRY_BACKWARDS"
    hint = "Truncate or reset the group's log first, or send the entries that belong there."


class StateInvalid(MisuseError):
    """The store cannot hold this change of applied state."""

    code, name = 1109, "STATE_INVALID"
    hint = "Keys have 503 bytes at most, values are bytes, applied indices go from 0 to 2^64 - 1."


class PlaceInvalid(MisuseError):
    """A uid, an index or an offset is not a number from 0 to 2^64 - 1."""

    code, name = 1113, "PLACE_INVALID"
    hint = "Pass the group's uid, and whole numbers from 0 to 2^64 - 1."


class JournalBusy(TroubleError):
    """The journal's queue to the disk is full. It did not accept this record."""

    code, name, retriable, outcome, http_status = 1110, "JOURNAL_BUSY", True, NONE, 429
    hint = "Wait until queued records are persisted, then send again."


class DiskFull(TroubleError):
    """The disk has no room for new records. Acknowledged records stay."""

    code, name, retriable, outcome, http_status = 1111, "DISK_FULL", True, NONE, 503
    hint = "Free space on the data disk, or lower retention; writing resumes by itself."


class JournalStopped(TroubleError):
    """The disk failed a write or a sync. The journal writes nothing more in this process."""

    code, name, outcome, http_status = 1112, "JOURNAL_STOPPED", UNKNOWN, 503
    hint = "Check the disk (kernel log), then restart the daemon; it recovers from its peers."


class CorruptData(TroubleError):
    """Bytes on disk fail their checksum, so they are not served."""

    code, name, outcome, http_status = 1120, "CORRUPT_DATA", NONE, 503
    hint = "See 'myq broker repairs'; 'myq wal verify PATH' names the places."


class EntryMissing(TroubleError):
    """The requested entry is before the start or after the end of this log."""

    code, name, outcome, http_status = 1121, "ENTRY_MISSING", NONE, 404
    hint = "Ask for an index or offset between the log's start and its end."


class FormatUnknown(TroubleError):
    """A file is not of this format, or of a version this program does not know."""

    code, name, outcome = 1122, "FORMAT_UNKNOWN", NONE
    hint = "Use the version of myqueue that wrote it, or check the path."


class StoreBroken(TroubleError):
    """The store under store/ is damaged; it can be rebuilt from the WAL."""

    code, name, outcome, http_status = 1123, "STORE_BROKEN", NONE, 503
    hint = "Delete the store/ folder and start the daemon: it is rebuilt from the WAL."


class DirectoryLocked(TroubleError):
    """Another process uses this data directory."""

    code, name, outcome = 1130, "DIRECTORY_LOCKED", NONE
    hint = "Stop the other daemon, or give this one a data directory of its own."


class IdentityMismatch(TroubleError):
    """The data directory belongs to another cluster, daemon or disk."""

    code, name, outcome = 1131, "IDENTITY_MISMATCH", NONE
    hint = "Check --data; a daemon never works under another one's identity."


class DirectoryUnusable(TroubleError):
    """The data directory cannot be created, read or written."""

    code, name, outcome = 1132, "DIRECTORY_UNUSABLE", NONE
    hint = (
        "Make the directory and give it to the user that the daemon runs as (chown), or repair it."
    )
