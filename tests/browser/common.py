"""What several of these tests need: where pictures go, what strangers send, what no page may do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from browser.chromium import Page
from browser.gateway import Gateway

PICTURES = Path(__file__).resolve().parents[2] / "build" / "screenshots"
# Nobody who may name a key or a message means well.
HOSTILE = (
    b"<script>document.title = 'gone'</script>",
    b'"><img src=x onerror="document.title = \'gone\'">',
    b"{{ 7 * 7 }} {% raw %}",
    "a\u202egnp.exe \x1b[31m".encode(),
    b"\x00\xff\xfe\x80 not text",
    b"",
)


def check(page: Page, gateway: Gateway) -> None:
    assert page.complaints == []
    # The browser's own icons in fields are data: addresses.
    ours = (gateway.address, "data:")
    assert [one for one in page.requests if not one.startswith(ours)] == []


def script(what: Any) -> str:
    """A value for a script."""
    return json.dumps(what)
