"""Routes: old answers, newer terms, hints, failures, topics that go and come back."""

from myqueue.cluster.routing import FAILED_MS, Routes

BROKERS = [[n, f"tcp://b{n}:9292", f"h{n}", True] for n in (1, 2, 3)]


def answer(applied, topics, unknown=(), brokers=BROKERS):
    return [applied, brokers, topics, list(unknown)]


def topic(*rows, name="t", uid=7):
    """Rows: (group, leader, term)."""
    partitions = [[at, group, node, term, [1, 2, 3]] for at, (group, node, term) in enumerate(rows)]
    return [name, uid, {}, partitions]


def leader(routes, group, now=0):
    return routes.leader(group, now)


def test_what_is_told_is_known():
    routes = Routes()
    assert routes.topic("t") is None and leader(routes, 10) is None
    assert routes.learn(answer(5, [topic((10, 1, 1), (11, 2, 4))]))
    found = routes.topic("t")
    assert [p.group for p in found.partitions] == [10, 11] and found.uid == 7
    assert leader(routes, 11) == "tcp://b2:9292"
    assert routes.partition(11).number == 1
    assert not routes.learn(answer(5, [topic((10, 1, 1), (11, 2, 4))])), "nothing new"


def test_only_a_newer_term_changes_a_leader():
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3))]))
    routes.learn(answer(6, [topic((10, 2, 2))]))
    assert leader(routes, 10) == "tcp://b1:9292"
    routes.learn(answer(6, [topic((10, 0, 3))]))
    assert leader(routes, 10) == "tcp://b1:9292"
    routes.learn(answer(6, [topic((10, 3, 4))]))
    assert leader(routes, 10) == "tcp://b3:9292"


def test_an_older_answer_may_know_a_newer_leader_but_not_fewer_partitions():
    routes = Routes()
    routes.learn(answer(9, [topic((10, 1, 3), (11, 1, 1))]))
    routes.learn(answer(8, [topic((10, 2, 4))]))
    assert len(routes.topic("t").partitions) == 2
    assert leader(routes, 10) == "tcp://b2:9292"


def test_a_hint_is_believed_until_there_is_news():
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3))]))
    assert routes.hint(10, {"leader": 2, "address": "tcp://b2:9292"})
    assert leader(routes, 10) == "tcp://b2:9292"
    routes.learn(answer(5, [topic((10, 1, 3))]))
    assert leader(routes, 10) == "tcp://b2:9292", "the same as before is no news"
    routes.learn(answer(5, [topic((10, 3, 4))]))
    assert leader(routes, 10) == "tcp://b3:9292"


def test_a_hint_may_name_a_node_only_or_nobody():
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3))]))
    assert routes.hint(10, {"leader": 3}) and leader(routes, 10) == "tcp://b3:9292"
    assert not routes.hint(10, {}) and leader(routes, 10) == "tcp://b1:9292"
    assert not routes.hint(10, {"leader": 99})
    assert not routes.hint(12345, {"leader": 1}), "a group that nobody knows"


def test_who_failed_is_not_asked_again_until_there_is_news_or_time_has_passed():
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3))]))
    routes.fail(10, "tcp://b1:9292", now=0)
    assert leader(routes, 10, 1) is None
    routes.learn(answer(5, [topic((10, 1, 3))]))
    assert leader(routes, 10, 1) is None
    assert leader(routes, 10, FAILED_MS) == "tcp://b1:9292"
    routes.fail(10, "tcp://b1:9292", now=1000)
    routes.learn(answer(6, [topic((10, 1, 4))]))
    assert leader(routes, 10, 1001) == "tcp://b1:9292", "elected anew"


def test_a_failed_hint_is_forgotten_and_not_taken_again_at_once():
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3))]))
    routes.hint(10, {"leader": 2})
    routes.fail(10, "tcp://b2:9292", now=0)
    assert leader(routes, 10, 1) == "tcp://b1:9292"
    assert not routes.hint(10, {"leader": 2})


def test_a_topic_that_was_deleted_is_gone_with_its_groups():
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3))]))
    assert routes.learn(answer(6, [], ["t"]))
    assert routes.is_unknown("t") and routes.topic("t") is None
    assert routes.partition(10) is None and leader(routes, 10) is None
    routes.learn(answer(5, [topic((10, 1, 3))]))
    assert routes.topic("t") is None, "a manager that lags behind does not revive it"


def test_a_manager_that_lags_behind_deletes_nothing():
    routes = Routes()
    routes.learn(answer(6, [topic((10, 1, 3))]))
    routes.learn(answer(5, [], ["t"]))
    assert routes.topic("t") is not None and not routes.is_unknown("t")


def test_a_topic_made_anew_has_other_groups():
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3), (11, 1, 3))]))
    routes.learn(answer(8, [topic((20, 2, 1), uid=9)]))
    assert routes.topic("t").uid == 9 and routes.partition(10) is None
    assert leader(routes, 20) == "tcp://b2:9292"


def test_what_a_session_changed_itself_is_not_known_from_before():
    """It deleted and made the topic: neither the cache nor an answer on its way may tell of the old
    one, and whoever says that there is none is late.
    """
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3))]))
    routes.changed("t", 8)
    assert routes.topic("t") is None and routes.partition(10) is None
    routes.learn(answer(7, [topic((10, 1, 3))]))
    routes.learn(answer(6, [], ["t"]))
    assert routes.topic("t") is None and not routes.is_unknown("t")
    routes.learn(answer(8, [topic((20, 2, 1), uid=9)]))
    assert routes.topic("t").uid == 9
    routes.changed("t", 8)
    assert routes.topic("t").uid == 9, "known from after the change"


def test_asking_for_all_tells_what_is_gone():
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3)), topic((20, 1, 1), name="u", uid=8)]))
    routes.learn(answer(6, [topic((20, 1, 1), name="u", uid=8)]), asked_all=True)
    assert routes.topic("t") is None and routes.topic("u") is not None


def test_half_a_topic_is_not_taken():
    routes = Routes()
    rows = [["t", 7, {}, [[1, 11, 1, 1, [1]]]]]
    routes.learn(answer(5, rows))
    assert routes.topic("t") is None


def test_addresses_follow_the_newest_answer():
    routes = Routes()
    routes.learn(answer(5, [topic((10, 1, 3))]))
    routes.learn(answer(6, [], brokers=[[1, "tcp://moved:1", "h", True]]))
    assert leader(routes, 10) == "tcp://moved:1"
    routes.learn(answer(4, []))
    assert leader(routes, 10) == "tcp://moved:1" and 2 in routes.brokers
