"""Where segments are: local folders, or any storage that pyarrow has a file system for.

A location is a path or a URI (`s3://bucket/archive`, `hdfs://…`, `gs://…`, `file:///…`). Both are
listed and read alike: `entries(location)`, `open_file(location).read(position, length)`. Paths are
read by system calls, which cost less than a file system object. URIs are read by pyarrow, whose
wheel holds S3, GCS and Azure, reads ranges, and needs no memory of the JVM.

This module only reads.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from myqueue.errors import FormatUnknown


class File(Protocol):
    """An open file. `read` gives fewer bytes at the end of the file; errors are OSError."""

    size: int

    def read(self, position: int, length: int) -> bytes: ...

    def close(self) -> None: ...


class _LocalFile:
    _fd = -1

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        while 0 < len(data) < length:  # one call reads at most 2 GiB, or until a signal
            more = os.pread(self._fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class _RemoteFile:
    def __init__(self, location: str) -> None:
        system, path = _remote(location)
        self._file = system.open_input_file(path)
        self.size = int(self._file.size())

    def read(self, position: int, length: int) -> bytes:
        length = min(length, self.size - position)
        return bytes(self._file.read_at(length, position)) if length > 0 else b""

    def close(self) -> None:
        self._file.close()


def is_remote(location: str) -> bool:
    scheme, colon, _ = location.partition("://")
    return bool(colon) and scheme.isalnum()


def join(location: str, *names: str) -> str:
    return "/".join((location.rstrip("/"), *names))


def base_name(location: str) -> str:
    return location.rstrip("/").rpartition("/")[2]


def parent(location: str) -> str:
    return location.rstrip("/").rpartition("/")[0] or "/"


def canonical(location: str) -> str:
    return location.rstrip("/") if is_remote(location) else os.path.abspath(location)


def open_file(location: str) -> File:
    return _RemoteFile(location) if is_remote(location) else _LocalFile(location)


def entries(location: str) -> dict[str, int | None]:
    """The names in a folder, with the sizes of files and None for folders."""
    if is_remote(location):
        return _remote_entries(location)
    sizes: dict[str, int | None] = {}
    with os.scandir(location) as names:
        for entry in names:
            try:
                sizes[entry.name] = None if entry.is_dir() else entry.stat().st_size
            except FileNotFoundError:  # reclaimed since the folder was read
                continue
    return sizes


def _remote_entries(location: str) -> dict[str, int | None]:
    from pyarrow.fs import FileSelector, FileType

    system, path = _remote(location)
    return {
        one.base_name: None if one.type == FileType.Directory else int(one.size)
        for one in system.get_file_info(FileSelector(path))
    }


def _remote(location: str) -> tuple[Any, str]:
    """The file system that a URI names, and the path in it."""
    import pyarrow
    from pyarrow.fs import FileSystem

    try:
        system, path = FileSystem.from_uri(location)
    except pyarrow.ArrowInvalid as error:
        raise FormatUnknown(
            f"{location}: {error}", hint="Give a path, or a URI that pyarrow.fs knows."
        ) from None
    return system, path
