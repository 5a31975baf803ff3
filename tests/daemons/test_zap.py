"""Who is let in: S1 (keys of one door do not open the other), Z12 (an allow-list), pure."""

import zlib

import pytest

from myqueue.daemons.network import admission


class Keys:
    peers = (admission.z85(b"P" * 32), b"")

    def __init__(self, **admitted: bytes) -> None:
        self.admitted = {admission.z85(public): name for name, public in admitted.items()}

    def admits(self, public: bytes) -> str | None:
        return self.admitted.get(public)


def request(domain: bytes, public: bytes, mechanism: bytes = b"CURVE") -> list[bytes]:
    return [b"1.0", b"7", domain, b"127.0.0.1", b"", mechanism, public]


@pytest.mark.parametrize(
    ("domain", "public", "name"),
    [
        (b"clients", b"a" * 32, b"app"),
        (b"clients", b"b" * 32, None),
        (b"clients", b"P" * 32, None),  # S1: a daemon's key is none of a client
        (b"peers", b"P" * 32, b"peer"),
        (b"peers", b"a" * 32, None),  # S1: a client's key never speaks Raft
        (b"", b"a" * 32, None),
    ],
)
def test_a_key_opens_one_door(domain: bytes, public: bytes, name: bytes | None) -> None:
    reply, good = admission.answer_handshake(request(domain, public), Keys(app=b"a" * 32))
    assert reply[:3] == [b"1.0", b"7", b"200" if name else b"400"]
    assert good == (name is not None) and reply[4] == (name or b"")


@pytest.mark.parametrize(
    "asked",
    [
        [],
        [b"1.0"],
        [b"2.0", *request(b"clients", b"a" * 32)[1:]],
        request(b"clients", b"a" * 32, b"NULL"),
        request(b"clients", b"a" * 32, b"PLAIN"),
        request(b"clients", b"a" * 31),
        request(b"clients", b"a" * 32)[:6],
    ],
)
def test_whatever_else_is_asked_is_refused(asked: list[bytes]) -> None:
    reply, good = admission.answer_handshake(asked, Keys(app=b"a" * 32))
    assert not good and reply[2] == b"400" and len(reply) == 6


def test_z85_as_its_specification_has_it() -> None:
    assert admission.z85(bytes.fromhex("864fd26fb559f75b")) == b"HelloWorld"
    assert len({admission.z85(zlib.crc32(b"%d" % n).to_bytes(4, "big")) for n in range(999)}) == 999
