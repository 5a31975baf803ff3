"""Large JSON: the same as the standard library reads and writes, and nobody else stands still."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from myqueue.gateway.api import large_json
from myqueue.gateway.api.large_json import dumps

MB = 1_000_000
SIGNS = '{}[],:"\\ 0123456789.eE-+tfnulrasd\x01é\n'


def refuse(name: str) -> Any:
    raise ValueError(name)


def made(random_: random.Random, depth: int = 0) -> Any:
    kind = random_.randrange(9 if depth < 5 else 6)
    if kind < 6:
        plain = (None, True, -1.5e300, random_.getrandbits(70), 'a"\\é\n\ud800', "")
        return plain[kind]
    if kind < 8:
        return [made(random_, depth + 1) for _ in range(random_.randrange(5))]
    names = [str(random_.randrange(9)) for _ in range(random_.randrange(5))]
    return {name: made(random_, depth + 1) for name in names}


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return json.dumps(read())
    except ValueError:
        return "refused"


def test_it_reads_what_the_standard_library_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "VALUES_AT_ONCE", -1)
    monkeypatch.setattr(large_json, "LARGE_BYTES", -1)
    random_ = random.Random(7)
    refused = 0
    for _ in range(4000):
        indent = random_.choice((None, 1, "\t"))
        text = json.dumps(made(random_), ensure_ascii=random_.random() < 0.5, indent=indent)
        for _ in range(random_.choice((0, 0, 1, 2))):
            at = random_.randrange(len(text) + 1)
            text = text[:at] + random_.choice(SIGNS) + text[at + random_.randrange(2) :]
        plain = outcome(lambda text=text: json.loads(text, parse_constant=refuse))
        assert outcome(lambda text=text: large_json.loads(text)) == plain, text
        refused += plain == "refused"
    assert 500 < refused < 3500


def test_values_and_depth_are_bounded() -> None:
    """However few bytes each of them has; and it is told in the one form of bad bodies."""
    for body in (b'{"a":' + b"[" * 200_000, b'{"a":[' + b"[]," * 600_000 + b"1]}"):
        with pytest.raises(ValueError, match=r"nested too deeply|more than \d+ values"):
            large_json.loads(body)


def test_answers_are_written_as_ever() -> None:
    for facts in (
        {"status": "success", "messages": [{"message": "é", "offset": 1}, {"message": "\x01"}]},
        {"messages": [1]},
        {"status": "success", "messages": []},
        {"a": 1},
        {"messages": None},
    ):
        assert json.loads(large_json.encoded(facts)) == json.loads(dumps(facts))


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as the gateway does
    yield
    sys.setswitchinterval(before)


@pytest.mark.serial  # a thread has to get a processor as soon as it wants one
@pytest.mark.parametrize("one", [b"[],", b"1,", b'{"a":1},'])
@pytest.mark.usefixtures("quick_switches")
def test_a_large_body_stops_nobody(one: bytes) -> None:
    """15 MB, of whatever: another thread goes on meanwhile. A stop is measured in processor time of
    the thread that reads, so another process that takes the processor adds nothing to it. The best
    of some attempts; the whole body at once, in the same run, is what it is compared with.
    """
    body = b'{"messages":[' + one * (15 * MB // len(one)) + b"1]}"
    bound_s = min(0.2, longest_stop(lambda: json.loads(body)) / 4)
    assert any(longest_stop(lambda: large_json.loads(body)) < bound_s for _ in range(5))


def longest_stop(read: Callable[[], Any]) -> float:
    """How long `read` worked, at most, while another thread did not come to run."""
    done, begun = threading.Event(), threading.Event()
    reader = time.pthread_getcpuclockid(threading.get_ident())
    longest, last = 0.0, time.clock_gettime(reader)

    def tick() -> None:
        nonlocal longest, last
        begun.set()
        while not done.wait(0.001):
            now = time.clock_gettime(reader)
            longest, last = max(longest, now - last), now

    thread = threading.Thread(target=tick)
    thread.start()
    begun.wait(10)
    try:
        read()
    except ValueError:
        pass
    end = time.clock_gettime(reader)
    done.set()
    thread.join(10)
    return max(longest, end - last)
