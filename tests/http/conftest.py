"""One cluster and one gateway for all tests here; each test has topics of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.gateways import Client, Gateway
from support.processes import Cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http")


@pytest.fixture(scope="session")
def cluster(folder: Path) -> Iterator[Cluster]:
    with Cluster(folder) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def gateway(folder: Path, cluster: Cluster) -> Iterator[Gateway]:
    with Gateway(folder, cluster.address) as gateway:
        yield gateway
        gateway.check()


@pytest.fixture
def http(gateway: Gateway) -> Iterator[Client]:
    with Client([gateway.port]) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("[", "-").replace("]", "")[:150]


@pytest.fixture
def new_topic(http: Client, topic: str) -> Callable[..., str]:
    def make(partitions: int = 1, suffix: str = "") -> str:
        name = topic + suffix
        status, answer = http.ask("POST", "/topics", {"topic": name, "partitions": partitions})
        assert status == 200, answer
        return name

    return make
