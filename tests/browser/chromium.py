"""A headless Chromium, driven by its own protocol over a pipe: no driver, no other package.

What the tests need of a browser is little: go somewhere, look at the page as a script of it sees
it, press real keys, have no script at all, be dark or narrow, take a picture; and know everything
that the browser complained about or asked the network for. `--remote-debugging-pipe` gives all of
that as JSON with a zero byte behind each message.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # containers and root have none
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
ANSWER_S: Final = 30.0
FINE: Final = "body:not(:has(#error))"  # any page but that of an error
WIDE, NARROW = (1280, 900), (390, 844)


def find() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class BrowserError(AssertionError):
    """The browser refused, or a script on the page failed."""


class Browser:
    """One process. Pages of it are tabs of one profile, which is gone afterwards."""

    def __init__(self, folder: Path) -> None:
        program = find()
        assert program, "no chromium"
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The protocol's pipes are number 3 and 4 in the browser.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["bash", "-c", script, program, *FLAGS, f"--user-data-dir={folder}"]
        with open(folder.parent / "chromium.log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, "about:blank"],
                pass_fds=(theirs_in, theirs_out),
                stderr=log,
                stdout=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"HOME": str(folder)},
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out = os.fdopen(ours_out, "wb", buffering=0)
        self._in = os.fdopen(ours_in, "rb", buffering=0)
        self._next = 0
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._listeners: dict[str, Callable[[str, dict[str, Any]], None]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        rest = b""
        while chunk := self._in.read(1 << 16):
            *messages, rest = (rest + chunk).split(b"\0")
            for raw in messages:
                told = json.loads(raw)
                if "id" in told:
                    self._answers[told["id"]].put(told)
                elif listener := self._listeners.get(told.get("sessionId", "")):
                    listener(told["method"], told["params"])

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        self._next += 1
        number = self._next
        answer = self._answers[number] = queue.Queue()
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._out.write(json.dumps(message).encode() + b"\0")
        try:
            told = answer.get(timeout=ANSWER_S)
        except queue.Empty:
            raise BrowserError(f"{method}: no answer in {ANSWER_S} s") from None
        finally:
            del self._answers[number]
        if "error" in told:
            raise BrowserError(f"{method}: {told['error']['message']}")
        result: dict[str, Any] = told["result"]
        return result

    @contextlib.contextmanager
    def page(self, **options: Any) -> Iterator[Page]:
        """A tab with cookies and storage of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, attached["sessionId"], **options)
        try:
            yield page
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def listen(self, session: str, listener: Callable[[str, dict[str, Any]], None]) -> None:
        self._listeners[session] = listener

    def close(self) -> None:
        with contextlib.suppress(BrowserError, OSError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._out.close()
        self._reader.join(5)
        self._in.close()


class Page:
    """One tab. `complaints`: what its console said; `requests`: every address it asked for."""

    def __init__(
        self,
        browser: Browser,
        session: str,
        *,
        size: tuple[int, int] = WIDE,
        dark: bool = False,
        script: bool = True,
    ) -> None:
        self._browser, self._session = browser, session
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = threading.Event()
        browser.listen(session, self._heard)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def _heard(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str([one.get("value") for one in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            thrown = params["exceptionDetails"]
            self.complaints.append(str(thrown.get("exception", {}).get("description", thrown)))

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def go_for(self, address: str, selector: str = FINE, seconds: float = 60.0) -> None:
        """To a page that has this element; a cluster that is busy may need several attempts."""
        end, before = time.monotonic() + seconds, len(self.complaints)
        while True:
            self.go(address)
            if self.run(f"!!document.querySelector({json.dumps(selector)})"):
                return
            assert time.monotonic() < end, f"{address} has no {selector}: {self.text()[:800]}"
            del self.complaints[before:]

    def go(self, address: str) -> None:
        self._loaded.clear()
        told = self.call("Page.navigate", url=address)
        assert not told.get("errorText"), f"{address}: {told.get('errorText')}"
        assert self._loaded.wait(ANSWER_S), f"{address} was not loaded in {ANSWER_S} s"

    def run(self, script: str) -> Any:
        """The value of an expression, awaited. Works where the page's own scripts are off, too."""
        told = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            thrown = told["exceptionDetails"]
            raise BrowserError(thrown.get("exception", {}).get("description", str(thrown)))
        return told["result"].get("value")

    def text(self, selector: str = "body") -> str:
        found = self.run(f"document.querySelector({json.dumps(selector)})?.innerText")
        return "" if found is None else str(found)

    def wait(self, what: str, script: str, seconds: float = 30.0) -> tuple[Any, float]:
        """Until the expression is true: its value, and how many seconds it took."""
        begin = time.monotonic()
        while True:
            try:
                found = self.run(script)
            except BrowserError as error:  # a page that is just being left has no context
                if "context" not in str(error) and "null" not in str(error):
                    raise
                found = None
            took = time.monotonic() - begin
            if found:
                return found, took
            assert took < seconds, f"not within {seconds} s: {what}; page: {self.text()[:800]}"
            time.sleep(0.02)

    def fill(self, selector: str, text: str) -> None:
        """Into a field, as if typed."""
        self.wait(selector, f"!!document.querySelector({json.dumps(selector)})")
        self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.focus(); one.select?.() })()"
        )
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """With the pointer, where the element is."""
        x, y = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def leave_by(self, selector: str) -> None:
        """Click, and wait until the next page is there."""
        self._loaded.clear()
        self.click(selector)
        assert self._loaded.wait(ANSWER_S), f"{selector} led nowhere"

    def press(self, key: str, code: int, text: str = "", shift: bool = False) -> None:
        common: dict[str, Any] = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": code,
            "modifiers": 8 * shift,
        }
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {})
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def tab(self) -> None:
        self.press("Tab", 9)

    def enter(self) -> None:
        self.press("Enter", 13, "\r")

    def picture(self, file: Path, whole: bool = True) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(told["data"]))
