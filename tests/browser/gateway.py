"""A gateway as users run it: a process of its own, on a free port, in front of a test's cluster."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from support.processes import free_ports, wait_for


class Gateway:
    """Runs from the constructor to `close`."""

    def __init__(self, cluster: str, log: Path, *flags: str) -> None:
        self.address = f"http://127.0.0.1:{free_ports(1)[0]}"
        self.console = f"{self.address}/console"
        self._log = log
        command = [sys.executable, "-P", "-m", "myqueue.gateway.main", "--cluster", cluster]
        command += ["--listen", self.address.removeprefix("http://"), *flags]
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stderr=file, stdin=subprocess.DEVNULL)
        wait_for("the gateway answers", self._is_there, 30)

    def _is_there(self) -> bool:
        assert self._process.poll() is None, f"the gateway ended:\n{self.said()}"
        try:
            with urllib.request.urlopen(f"{self.address}/livez", timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return error.code == 401  # it has tokens
        except OSError:
            return False

    def said(self) -> str:
        return self._log.read_text()[-3000:]

    def close(self) -> None:
        """In order, whatever pages are open."""
        self._process.terminate()
        try:
            code = self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
            raise AssertionError(f"the gateway did not stop:\n{self.said()}") from None
        assert code == 0, f"the gateway ended with {code}:\n{self.said()}"
