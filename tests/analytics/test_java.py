"""Which Java Spark gets: setting, JAVA_HOME, PATH, the extra; else one line that says how."""

from __future__ import annotations

from pathlib import Path

import pytest

from myqueue.analytics.spark import java


def fake(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled", lambda cache: None)


def test_the_order(tmp_path: Path) -> None:
    first, second = fake(tmp_path / "a", "21.0.1"), fake(tmp_path / "b", "17.0.15")
    third = fake(tmp_path / "c", "25")
    path = f"{third}/bin:/bin:/usr/bin"
    everything = {"MYQ_JAVA_HOME": str(first), "JAVA_HOME": str(second), "PATH": path}
    assert java.find_java(everything, tmp_path) == str(first)
    del everything["MYQ_JAVA_HOME"]
    assert java.find_java(everything, tmp_path) == str(second)
    del everything["JAVA_HOME"]
    assert java.find_java(everything, tmp_path) == str(third)


def test_what_is_too_old_is_passed_over_and_named(tmp_path: Path) -> None:
    old = fake(tmp_path / "old", "1.8.0_402")
    with pytest.raises(java.NoJava, match=r"JAVA_HOME=.* is Java 8") as caught:
        java.find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)}, tmp_path)
    assert "openjdk-17-jre-headless" in caught.value.hint


def test_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(java.NoJava, match="no Java was found"):
        java.find_java({"PATH": str(tmp_path)}, tmp_path)
