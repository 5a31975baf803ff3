"""What the stopped cluster's files say: the analytics' own reading of all logs and stores.

It shares no code with the brokers beyond the format of a record. The ledger of acknowledgements
that it is given comes from the history, with the bytes that were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from zlib import crc32

from faults.check import events_of
from faults.clients import value_of
from support.plain_spread import PlainSpread
from support.processes import Name

from myqueue.acks import AckLedger
from myqueue.analytics.verify.inspection_rows import Finding
from myqueue.analytics.verify.report import Report
from myqueue.analytics.verify.verify import Asked, verify
from myqueue.cli.spark.managers_state import rebuild


def read_logs(data: Path, history: Path, topic: str, scratch: Path) -> Report:
    scratch.mkdir(exist_ok=True)
    ledger = scratch / "acks.jsonl"
    ledger.unlink(missing_ok=True)
    with AckLedger(ledger) as acks:
        for _, verb, *fields in events_of(history):
            if verb == "ack" and fields[1] == topic:
                client, _, number, partition, offset = fields
                crc = crc32(value_of(f"{client}:{number}"))
                acks.note(topic, partition, offset, [crc])
    asked = Asked([str(data)], ledgers=[str(ledger)], with_stores=True, metadata=rebuild)
    return verify(asked, PlainSpread(), scratch)


def unexplained(found: Iterable[Finding], damaged: Mapping[Name, set[Path]]) -> list[Finding]:
    """All but what stands in the log of a daemon that still has a segment which was damaged on
    purpose: a minority, so that no message may be missing. When the segment is gone, its damage is
    mended, and its daemon's log has to be as good as any other.
    """
    known = {
        f"{kind}-{number}"
        for (kind, number), paths in damaged.items()
        if any(path.exists() for path in paths)
    }
    return [one for one in found if one.daemon not in known and one.verdict != "torn"]
