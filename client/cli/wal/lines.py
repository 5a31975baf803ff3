"""Format a decoded payload as one line of `myq wal dump`; --json prints it unformatted.

    batch: producer 7, epoch 0, sequence 12, 2 messages: "key" = "value" {"header": "x"}, 0x00ff
    COMMIT: consumer="reader" offset=14 member_epoch=1 assignment_epoch=1; consumer=…
    create_topic: name="orders" partitions=3 (key 0f6c…)

Texts are quoted as in JSON. Names come from users, so control characters are escaped.
"""

from __future__ import annotations

import json
from typing import Any

Value = dict[str, Any]


def as_line(value: Value) -> str:
    """Return one line for a decoded payload."""
    if "batch" in value:
        batch = value["batch"]
        if batch["messages"] is None:
            return f"{_batch_line(batch)}, not opened ({batch['problem']}): {value['hex']}"
        return f"{_batch_line(batch)}: {', '.join(map(_message_line, batch['messages']))}"
    if "command" in value:
        return _command_line(**value["command"])
    if "group" in value:
        return f"group: {_fields_line(value['group'])}"
    return json.dumps(value.get("text", value.get("hex")), ensure_ascii=False)


def _batch_line(batch: Value) -> str:
    source = f"key {batch['key']}"
    if batch["key"] is None:
        source = "producer {producer}, epoch {epoch}, sequence {sequence}".format(**batch)
    size = ""
    if batch["codec"] != "none":
        size = ", {codec} {stored_bytes:,} of {body_bytes:,} bytes".format(**batch)
    many = "" if batch["count"] == 1 else "s"
    return f"batch: {source}{size}, {batch['count']:,} message{many}"


def _message_line(message: Value) -> str:
    key, headers = message["key"], message["headers"]
    line = _content_line(message["value"])
    if key is not None:
        line = f"{_content_line(key)} = {line}"
    if headers:
        some = (f"{_quoted(name)}: {_content_line(raw)}" for name, raw in headers.items())
        line = f"{line} {{{', '.join(some)}}}"
    return line


def _content_line(content: Value) -> str:
    return _quoted(content["text"]) if "text" in content else f"0x{content['hex']}"


def _command_line(operation: str, **more: Any) -> str:
    name = _name(operation)
    if "rows" in more:
        return f"{name}: {'; '.join(map(_fields_line, more['rows']))}"
    if "arguments" in more:
        key = f" (key {more['key']})" if more["key"] else ""
        return f"{name}: {_fields_line(more['arguments'])}{key}"
    return f"{name}: {_fields_line(more)}" if more else name


def _fields_line(fields: Value) -> str:
    return " ".join(f"{_name(name)}={_quoted(value)}" for name, value in fields.items())


def _name(name: str) -> str:
    return name if name.isidentifier() else _quoted(name)


def _quoted(value: Any) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if line.isprintable() else json.dumps(value)
