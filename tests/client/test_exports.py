"""What `import myqueue` gives: every name of `__all__`, each when it is used first."""

import asyncio
import doctest
import importlib
import inspect
import subprocess
import sys

import pytest
from support.fake_cluster.peer import EchoCluster

import myqueue
from myqueue import testing


def test_every_name_is_there_and_listed() -> None:
    for name in myqueue.__all__:
        assert getattr(myqueue, name) is not None
        assert name in dir(myqueue)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = myqueue.no_such_name
    code = "from myqueue import *; Admin, Consumer, MyProducer, testing.cluster"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


@pytest.mark.parametrize(
    "name",
    [
        *("Admin", "Agent", "Consumer", "MyConsumer", "MyProducer", "Message", "AsyncConsumer"),
        *("AsyncProducer", "Delivery", "Producer", "RecordMetadata", "Session", "Taker"),
    ],
)
def test_each_public_class_has_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(myqueue, name)) or ""
    assert doctest.DocTestParser().get_examples(text)


@pytest.mark.parametrize(
    "name",
    [
        *("", "consumer.message", "consumer.subscription", "settings", "simple"),
        *("consumer.consumer", "errors.base", "producer.producer", "cluster.session"),
        *("admin.client", "producer.delivery"),
    ],
)
def test_examples_that_need_no_cluster_are_true(name: str) -> None:
    module = importlib.import_module(f"myqueue.{name}".rstrip("."))
    assert doctest.testmod(module).failed == 0


def test_the_fixture_is_made_on_demand() -> None:
    assert "myqueue_cluster" in dir(testing)
    assert testing.myqueue_cluster is testing.myqueue_cluster
    with pytest.raises(AttributeError):
        _ = testing.no_such_name
    code = "import myqueue.testing, sys; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


@pytest.mark.parametrize(
    "client", [myqueue.Producer, myqueue.Session, myqueue.AsyncProducer], ids=lambda c: c.__name__
)
def test_examples_of_the_help_run_on_a_cluster(client: type) -> None:
    with EchoCluster(1) as cluster:
        example = (client.__doc__ or "").replace("127.0.0.1:9092", cluster.address)
        names = {"asyncio": asyncio} | {name: getattr(myqueue, name) for name in myqueue.__all__}
        test = doctest.DocTestParser().get_doctest(
            example.replace("# doctest: +SKIP", ""), names, client.__name__, None, None
        )
        assert len(test.examples) > 1
        said: list[str] = []
        assert doctest.DocTestRunner().run(test, out=said.append).failed == 0, "".join(said)
