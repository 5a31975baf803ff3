"""Settings of daemons: what stands where, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from myqueue.daemons.config import load_config
from myqueue.daemons.main import run_daemon
from myqueue.errors import InvalidSetting

FLAGS: dict[str, Any] = {
    "id": 1,
    "data": "d",
    "listen": "127.0.0.1:9292",
    "peer_listen": "127.0.0.1:9392",
    "managers": ["1@127.0.0.1:9192"],
}


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('heartbeat_ms = 100\nhost = "file"\nlog = "json"\n')
    environment = {"MYQ_HEARTBEAT_MS": "200", "MYQ_HOST": "environment"}
    config = load_config("broker", str(file), environment, FLAGS | {"heartbeat_ms": 300})
    assert (config.heartbeat_ms, config.host, config.log) == (300, "environment", "json")
    assert config.election_timeout_ms == 500


@pytest.mark.parametrize(
    "address", ["localhost.example:92", "127.0.0.1.example:92", "[::]:92", "0.0.0.0:92"]
)
def test_what_only_looks_like_loopback_needs_keys(address: str) -> None:
    """S5: a name that begins like one leads who knows where."""
    with pytest.raises(InvalidSetting, match="not a loopback address"):
        load_config("broker", None, {}, FLAGS | {"listen": address})


@pytest.mark.parametrize("address", ["localhost:92", "127.8.0.1:92", "[::1]:92", "tcp://[::1]:92"])
def test_loopback_needs_no_keys(address: str) -> None:
    assert load_config("broker", None, {}, FLAGS | {"listen": address}).listen.endswith(":92")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_bytes(b"host = '\xff'")
    with pytest.raises(InvalidSetting, match=r"b\.toml"):
        load_config("broker", str(file), {}, FLAGS)


@pytest.mark.parametrize("door", ["listen", "peer_listen"])
def test_another_address_than_loopback_needs_keys(door: str) -> None:
    """S5: what is open to a network has to be asked for."""
    flags = FLAGS | {door: "10.1.2.3:9292"}
    with pytest.raises(InvalidSetting, match="not a loopback address, and there are no keys"):
        load_config("broker", None, {}, flags)
    assert load_config("broker", None, {}, flags | {"keys": "folder"}).keys == "folder"
    assert load_config("broker", None, {}, flags | {"insecure": True}).keys == ""


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("id", "x", "id = 'x' is not a number"),
        ("id", 0, "id = 0 is not 1 to 9999"),
        ("listen", "nowhere", "is not host:port"),
        ("managers", ["127.0.0.1:1"], "is not ID@host:port"),
        ("managers", ["1@a:1", "1@b:1"], "1 is named twice"),
        ("segment_bytes", 4096, "segment_bytes"),
        ("log", "xml", "neither text nor json"),
        ("data", "", "data is missing"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: Any, told: str) -> None:
    values = {key: one for key, one in FLAGS.items() if key != name}
    with pytest.raises(InvalidSetting, match=told):
        load_config("broker", None, {}, values | ({name: value} if value != "" else {}))


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[::0]", "[::ffff:0.0.0.0]", "0"])
@pytest.mark.parametrize("kind", ["broker", "manager"])
@pytest.mark.parametrize(
    ("door", "name"), [("listen", "--advertise"), ("peer_listen", "--peer-advertise")]
)
def test_every_address_is_none_to_connect_to(host: str, kind: str, door: str, name: str) -> None:
    """Replicas would be given to a broker that nobody reaches."""
    flags = FLAGS | {door: f"{host}:9292", "insecure": True}
    with pytest.raises(InvalidSetting, match="every address of this machine") as told:
        load_config(kind, None, {}, flags)
    assert f"{name} HOST:PORT" in told.value.hint
    advertised = name.strip("-").replace("-", "_")
    with pytest.raises(InvalidSetting, match=rf"^{advertised} = "):
        load_config(kind, None, {}, flags | {advertised: f"{host}:1"})
    config = load_config(kind, None, {}, flags | {advertised: "10.1.2.3:9292"})
    assert getattr(config, advertised) == "10.1.2.3:9292"


def test_managers_are_named_by_addresses_to_connect_to() -> None:
    with pytest.raises(InvalidSetting, match="no address to connect to"):
        load_config("broker", None, {}, FLAGS | {"managers": ["1@0.0.0.0:9192"]})


def test_wrong_settings_end_a_daemon_as_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_daemon("broker", None, FLAGS | {"listen": "0.0.0.0:9292", "insecure": True})
    assert ended.value.code == 2 and "--advertise HOST:PORT" in capfd.readouterr().err
