"""A page in headless Chromium, driven over the browser's DevTools protocol."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any


class Browser:
    """Chromium without a window, as a context manager, with one page at ``address``."""

    def __init__(self, program: str, profile: Path, address: str) -> None:
        self._program, self._profile, self._address = program, profile, address
        self._calls = 0

    def __enter__(self) -> Browser:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # Chromium reads commands from descriptor 3 and answers to descriptor 4.
        line = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            ["bash", "-c", line, self._program, *options, f"--user-data-dir={self._profile}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._reader = os.fdopen(self._answers, "rb")
        target = self._call("Target.createTarget", url=self._address)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        self._reader.close()

    def wait_for(self, expression: str, seconds: float) -> Any:
        """Return the JavaScript expression's first value that is not null. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            parameters = {"expression": expression, "returnByValue": True}
            value = self._call("Runtime.evaluate", self._session, **parameters)["result"].get("value")
            if value is not None:
                return value
            time.sleep(0.1)
        raise TimeoutError(f"{expression} has no value after {seconds} seconds")

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command, reading over the events before it."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        text = json.dumps(message | ({"sessionId": session} if session else {}))
        os.write(self._commands, text.encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._calls:
                result: dict[str, Any] = answer["result"]
                return result

    def _message(self) -> bytes:
        """Return the browser's next message, which a zero byte ends."""
        message = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser closed its pipe")
            message += byte
        return bytes(message)
