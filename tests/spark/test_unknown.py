"""What the logs do not have, and what they do not tell, is an error and not an empty result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.queue_logs import Topic, write_reclaimed_cluster

from myqueue import cli
from myqueue.cli.spark.commands import told
from myqueue.errors import UnknownTopic

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def myq(spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`myq spark …` in the session that is there: code, stdout, stderr."""

    @contextmanager
    def session_on(*_words: object, **_settings: object) -> Iterator[Any]:
        with told():
            yield spark

    for name in ("verify", "stats", "export"):
        monkeypatch.setattr(f"myqueue.cli.spark.{name}.session_on", session_on)

    def run(*words: object) -> tuple[int, str, str]:
        code = cli.main(["spark", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_topic_that_no_log_has(spark: Any, folder: Path, tmp_path: Path) -> None:
    """A stream waits for it: it may be made later."""
    from myqueue.analytics.export import export

    target = tmp_path / "out"
    with pytest.raises(UnknownTopic, match="'nope' is in none of these logs"), told():
        export(spark, [str(folder)], str(target), ("a", "nope"), restart=True)
    assert not target.exists()
    source = spark.read.format("myqueue").option("topic", "a,nope")
    with pytest.raises(Exception, match="'nope' is in none of these logs"):
        source.load(str(folder)).count()
    stream = spark.readStream.format("myqueue").schema("offset long").option("topic", "nope")
    query = (
        stream.load(str(folder))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "point"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def test_a_partition_of_which_nothing_is_known(spark: Any, myq: Run, tmp_path: Path) -> None:
    """One log of three, without hints and without its store; there is a way on."""
    topic = Topic("a", 100)
    topic.noop()
    topic.data(5)
    write_reclaimed_cluster(tmp_path / "all", [topic], hints=False)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "wal").symlink_to(tmp_path / "all" / "broker-1" / "wal")
    with pytest.raises(Exception, match=r"nothing in these logs tells .* of a/0"):
        spark.read.format("myqueue").load(str(alone)).count()
    going_on = spark.read.format("myqueue").option("failOnUnknown", "false")
    assert going_on.load(str(alone)).count() == 0
    assert spark.read.format("myqueue").load(str(tmp_path / "all")).count() == 5
    code, out, _ = myq("verify", alone)
    assert code == 3 and "Not all could be checked." in out and "All is well" not in out
    assert "could not be checked: nothing in these logs tells" in out
    for words in (("stats", alone), ("export", alone, "--to", tmp_path / "out")):
        code, _, err = myq(*words)
        assert code == 3 and "--skip-unknown" in err
        code, _, err = myq(*words, "--skip-unknown")
        assert code == 0 and "note: left out, since nothing tells" in err
    code, _, err = myq("stats", alone, "--topic", "nope")
    assert code == 1 and "There are a." in err
