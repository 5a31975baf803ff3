"""Sessions and connections against real sockets: greeting, repeats, hints, ends."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.fake_cluster.peer import EchoCluster, refuse

from myqueue import errors, settings
from myqueue.cluster.session import Session
from myqueue.wire import protocol as words


@pytest.fixture
def cluster() -> Iterator[EchoCluster]:
    with EchoCluster(3) as cluster:
        yield cluster


@pytest.fixture
def session(cluster: EchoCluster) -> Iterator[Session]:
    with Session(cluster.address, name="test", request_timeout_ms=5_000) as session:
        yield session


def test_a_read_is_answered_and_names_the_cluster(session):
    assert session.cluster_id == ""
    assert session.read("cluster", {"a": 1}).result() == {"echo": {"a": 1}}
    assert session.cluster_id == "echo"


def test_reads_go_round_all_connected_managers(cluster, session):
    session.keep_alive(producer=1)  # which speaks with all of them
    wait_for(lambda: all(daemon.heard["ALIVE"] for daemon in cluster.daemons))
    for _ in range(60):
        session.read("cluster").result()
    assert all(daemon.heard["READ"] >= 15 for daemon in cluster.daemons)


def test_an_update_finds_the_leader_and_stays_there(cluster, session):
    cluster.manager = 2
    first = session.update("open_producer", {}).result()
    again = session.update("open_producer", {"producer_id": first["producer_id"]}).result()
    assert again == {"producer_id": first["producer_id"], "epoch": 1}
    assert sum(d.heard["UPDATE"] for d in cluster.daemons if d.node != 2) <= 1


def test_other_managers_are_learned_from_one(cluster):
    cluster.manager = 3
    with Session(cluster.daemons[0].address) as session:
        session.read("cluster").result()
        deadline = time.monotonic() + 5
        while len(session.manager_addresses) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        cluster.daemons[0].stop()
        assert session.update("open_producer", {}).result()["epoch"] == 0


def test_an_update_whose_answer_is_lost_is_repeated_with_its_key_and_done_once(cluster, session):
    """C11: repeats within the deadline, under one key."""
    lost = []

    def swallow_first(envelope, frames):
        if envelope[words.KIND] == words.UPDATE and not lost:
            lost.append(cluster.update(*envelope[words.FIELDS :]))
            return refuse(envelope[words.REQUEST], errors.OutcomeUnknown, "leader lost")
        return None

    cluster.daemons[0].script = swallow_first
    result = session.update("open_producer", {}).result()
    assert lost == [result] and cluster.epochs == {result["producer_id"]: 0}


def test_what_is_wrong_is_not_repeated(cluster, session):
    with pytest.raises(errors.InvalidRequest):
        session.update("no_such_thing", {}).result()
    assert cluster.daemons[0].heard["UPDATE"] == 1


def test_a_timeout_names_every_address_and_what_it_said(cluster, session):
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: (
            refuse(envelope[words.REQUEST], errors.NoQuorum, "1 of 3")
            if envelope[words.KIND] == words.UPDATE
            else None
        )
    with pytest.raises(errors.TimedOut) as caught:
        session.update("open_producer", {}, timeout_ms=1500).result()
    for daemon in cluster.daemons:
        assert f"{daemon.address}: NO_QUORUM: 1 of 3" in str(caught.value)
    assert caught.value.outcome == errors.NONE


def test_who_answered_was_reached_whoever_else_is_silent():
    """C11: a manager said why nothing can be done; that another one is frozen changes nothing."""
    with socket.create_server(("127.0.0.1", 0)) as frozen, EchoCluster(1) as cluster:
        cluster.daemons[0].script = lambda envelope, frames: (
            refuse(envelope[words.REQUEST], errors.NoQuorum, "1 of 3")
            if envelope[words.KIND] == words.UPDATE
            else None
        )
        silent = f"127.0.0.1:{frozen.getsockname()[1]}"
        with Session(f"{cluster.daemons[0].address},{silent}") as session:
            with pytest.raises(errors.TimedOut, match="NO_QUORUM: 1 of 3") as caught:
                session.update("open_producer", {}, timeout_ms=2500).result()
            assert caught.value.outcome == errors.NONE


def test_nobody_there_is_unreachable_in_time():
    """C11: no endless retry; the deadline is the caller's."""
    with EchoCluster(2) as cluster:
        address = cluster.address
    with Session(address) as session:
        begin = time.monotonic()
        with pytest.raises(errors.Unreachable, match="connection refused"):
            session.read("cluster", timeout_ms=300).result()
        assert time.monotonic() - begin < 2


def test_an_update_that_may_have_been_done_says_so(cluster, session):
    """Z9: what was sent may have arrived; only an answer says so."""
    session.read("cluster").result()  # connected, so that the time is spent on waiting alone
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: [] if envelope[words.KIND] == 12 else None
    with pytest.raises(errors.TimedOut) as caught:
        session.update("open_producer", {}, timeout_ms=200).result()
    assert caught.value.outcome == errors.UNKNOWN


def test_another_cluster_is_refused(cluster, session):
    session.read("cluster").result()
    with EchoCluster(cluster_id="other") as other:
        with pytest.raises(errors.ClusterMismatch):
            session.call(other.address, words.STATUS, (0,)).result()
        other.daemons[0].script = lambda envelope, frames: (
            [[words.encode(words.WELCOME, 0, "other", "broker", 9, "echo", {})]]
            if envelope[words.KIND] == words.HELLO
            else None
        )
        with pytest.raises(errors.ClusterMismatch, match="belongs to cluster other"):
            session.call(other.address, words.STATUS, (0,)).result()


def test_one_address_one_attempt(cluster, session):
    daemon = cluster.daemons[0]
    with pytest.raises(errors.Unsupported):
        session.call(daemon.address, words.STATUS, (0,)).result()
    daemon.script = lambda envelope, frames: [] if envelope[words.KIND] == words.STATUS else None
    with pytest.raises(errors.TimedOut) as late:
        session.call(daemon.address, words.STATUS, (0,), timeout_ms=50).result()
    assert late.value.outcome == errors.UNKNOWN
    waiting = session.call(daemon.address, words.STATUS, (0,))
    while daemon.heard["STATUS"] < 3:
        time.sleep(0.001)
    daemon.stop()
    with pytest.raises(errors.OutcomeUnknown):
        waiting.result()
    with pytest.raises(errors.Unreachable) as refused:
        session.call(daemon.address, words.STATUS, (0,)).result()
    assert refused.value.outcome == errors.NONE


def test_a_daemon_that_comes_back_is_greeted_anew(cluster, session):
    """Z4, Z14: a new socket, a new greeting; nothing old is delivered late."""
    daemon = cluster.daemons[0]
    call = (daemon.address, words.READ, ("cluster", {}, 0, False))
    session.call(*call).result()
    daemon.stop()
    daemon.start()
    begin = time.monotonic()
    while True:
        try:
            session.call(*call, timeout_ms=500).result()
            break
        except errors.TroubleError:
            assert time.monotonic() - begin < 5
    assert daemon.heard["HELLO"] == 2


def test_topics_are_ensured(cluster, session):
    cluster.topic("t", 2)
    topics = session.ensure_topics(["t"]).result()
    assert [len(t.partitions) for t in topics] == [2]
    with pytest.raises(errors.UnknownTopic, match="making it was not asked for"):
        session.ensure_topics(["t", "u"]).result()
    assert [t.name for t in session.ensure_topics(["t", "u"], create=True).result()] == ["t", "u"]
    assert session.routes.leader(cluster.topics["t"][1], 0) == cluster.daemons[1].address


def test_who_asks_in_vain_for_a_topic_takes_it_from_nobody(cluster, session):
    """C10: a consumer that shares the session with a producer sees that it was made again."""
    cluster.topic("t")
    session.ensure_topics(["t"]).result()
    cluster.delete("t")
    session.refresh()
    wait_for(lambda: session.routes.topic("t") is None)
    with pytest.raises(errors.UnknownTopic):
        session.ensure_topics(["t"]).result()
    cluster.topic("t")
    session.refresh()
    wait_for(lambda: session.routes.topic("t") is not None)


def wait_for(condition):
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("value", [1 << 64, "\ud800", {1}])
def test_what_cannot_be_packed_is_told_at_once(cluster, session, value):
    """Whoever waits for the answer would wait for ever."""
    for target in (session.managers, cluster.address.split(",")[0]):
        with pytest.raises(errors.InvalidRequest, match="can't be sent"):
            session.call(target, words.OFFSETS, (None, value, [1]), timeout_ms=60_000).result(2)


def test_a_topic_that_appears_later_is_waited_for(cluster, session):
    """A manager that lags behind says "unknown", the leader knows better."""
    cluster.daemons[0].script = cluster.daemons[1].script = cluster.daemons[2].script = (
        lambda envelope, frames: (
            [[words.encode(words.ANSWER, envelope[words.REQUEST], 1, {})]]
            if envelope[words.KIND] == words.READ
            else None
        )
    )
    future = session.ensure_topics(["late"])
    time.sleep(0.1)
    assert not future.done()
    cluster.topic("late")
    assert future.result(5)[0].name == "late"


def test_routes_that_change_are_told(cluster, session):
    cluster.topic("t")
    told = threading.Event()
    session.on_routes(told.set)
    session.ensure_topics(["t"]).result()
    assert told.wait(5)
    told.clear()
    cluster.lead(cluster.topics["t"][0], 3)
    session.refresh()
    assert told.wait(5)
    assert session.routes.leader(cluster.topics["t"][0], 0) == cluster.daemons[2].address


@pytest.mark.slow
def test_the_living_are_told_to_all_managers(cluster, session):
    session.keep_alive(producer=7)
    session.keep_alive(consumer=9)
    begin = time.monotonic()
    while any(d.heard["ALIVE"] < 2 for d in cluster.daemons) and time.monotonic() - begin < 5:
        time.sleep(0.005)
    assert ([7], [9]) in cluster.alive


def test_the_io_thread_survives_what_callbacks_do(cluster, session, caplog):
    session.on_io(lambda: 1 / 0)
    session.after(1, lambda: 1 / 0)
    future = session.read("cluster")
    future.add_done_callback(lambda future: 1 / 0)
    assert future.result() and session.read("cluster").result()
    ran = threading.Event()
    session.after(5, ran.set)
    cancelled = session.after(5, lambda: pytest.fail("cancelled"))
    cancelled.cancel()
    assert ran.wait(5)


def test_waiting_in_a_callback_is_refused(session):
    caught = []

    def callback(future):
        try:
            session.wait(future)
        except errors.ConcurrentUse as error:
            caught.append(error)

    future = session.read("cluster")
    future.add_done_callback(callback)
    session.wait(future)
    session.wait(session.read("cluster"), 5_000)
    assert len(caught) <= 1  # none if the answer came before the callback was added


def test_closing_answers_everybody_and_never_hangs(cluster, session):
    """Z8: nothing lingers."""
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: []  # not even a greeting
    pending = [session.read("a"), session.update("b", {}), session.ensure_topics(["t"])]
    pending.append(session.call(cluster.daemons[0].address, words.STATUS, (0,)))
    begin = time.monotonic()
    session.close()
    assert time.monotonic() - begin < 2
    for future in pending:
        with pytest.raises(errors.Closed):
            future.result(5)
    with pytest.raises(errors.Closed):
        session.read("a")
    session.close()


def test_an_update_that_was_sent_before_the_end_may_be_done(cluster, session):
    """C1: no answer will come, so nobody may read that it was not done."""
    sent = threading.Event()

    def swallow(envelope, frames):
        if envelope[words.KIND] == words.UPDATE:
            sent.set()
            return []
        return None

    for daemon in cluster.daemons:
        daemon.script = swallow
    update = session.update("open_producer", {})
    read = session.call("tcp://127.0.0.1:9", words.STATS)  # never sent
    assert sent.wait(5)
    session.close()
    for asked, outcome in ((update, errors.UNKNOWN), (read, errors.NONE)):
        with pytest.raises(errors.MyQueueError) as caught:
            asked.result(5)
        assert caught.value.outcome == outcome


def test_threads_that_ask_while_it_is_closed_get_closed_and_nothing_else(cluster):
    for _ in range(20):
        session, problems = Session(cluster.address), []

        def ask(session=session, problems=problems):
            try:
                while True:
                    session.read("cluster").result(5)
            except errors.Closed:
                pass
            except Exception as error:
                problems.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        session.read("cluster").result(5)
        session.close()
        for thread in threads:
            thread.join(5)
        assert not problems and not any(thread.is_alive() for thread in threads)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused(session):
    """Z10: no socket crosses a fork."""
    session.read("cluster").result()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            session.read("cluster")
        except errors.Forked:
            session.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert session.read("cluster").result()


def test_ctrl_c_ends_a_wait(cluster, session):
    for daemon in cluster.daemons:
        daemon.script = lambda envelope, frames: []
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        session.wait(session.read("cluster"))
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize(
    "text", ["\ud800host:92", "a b:92", "host\x00:92", "host:0", "h:99999", ""]
)
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidSetting, match="not an address"):
        settings.address(text)
