"""A page in headless Chromium, driven through its DevTools protocol over a pipe: no further package, no open port.

https://chromedevtools.github.io/devtools-protocol/ has the methods. `--remote-debugging-pipe` reads commands from file
descriptor 3 and writes answers and events to 4, JSON messages that end in a NUL byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
ANSWER_S = 60.0


class Browser:
    """A running browser with one page at a time."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number, self._session, self._rest = 0, "", b""
        self._events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method on the page, or on the browser as long as there is none; returns its result.

        Raises:
            RuntimeError: the browser refuses, or does not answer.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        until = time.monotonic() + ANSWER_S
        while True:
            found = self._read(until)
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result

    def event(self, method: str) -> dict[str, Any]:
        """Waits for an event, one that came earlier included."""
        until = time.monotonic() + ANSWER_S
        while True:
            for found in self._events:
                if found["method"] == method:
                    parameters: dict[str, Any] = found["params"]
                    return parameters
            self._read(until)

    def _read(self, until: float) -> dict[str, Any]:
        """The next message; events are kept."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer.")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        if "method" in found:
            self._events.append(found)
        return found

    def open(self, page: Path, width: int, *, dark: bool = False, height: int = 900) -> Visit:
        """Opens a page at a width in CSS pixels; 500 and less as a phone does."""
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self._events.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.event("Page.loadEventFired")
        return Visit(self, width)

    def events(self) -> list[dict[str, Any]]:
        """What the page told since it was opened."""
        self.call("Runtime.evaluate", expression="0")  # everything before has arrived when this is answered
        return self._events


class Visit:
    """An open page."""

    def __init__(self, browser: Browser, width: int) -> None:
        self._browser, self._width = browser, width

    def run(self, script: str) -> Any:
        """The value of an expression; promises are awaited.

        Raises:
            RuntimeError: the script raised.
        """
        found = self._browser.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return found["result"].get("value")

    def click(self, selector: str, number: int = 0) -> None:
        """Scrolls to an element and clicks into its middle with the mouse."""
        place = self.run(
            f"(() => {{ const one = document.querySelectorAll({json.dumps(selector)})[{number}];"
            "one.scrollIntoView({block: 'center', inline: 'center'}); const box = one.getBoundingClientRect();"
            "return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            position = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self._browser.call("Input.dispatchMouseEvent", type=kind, **position)

    def move(self, x: float, y: float) -> None:
        """Moves the mouse there."""
        self._browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Presses and releases a key: Enter, Tab, ArrowDown, ..."""
        codes = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        one = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self._browser.call("Input.dispatchKeyEvent", type="keyDown", **one, **text)
        self._browser.call("Input.dispatchKeyEvent", type="keyUp", **one)

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        # A phone lays a page that does not fit out wider than its screen: only the screen's own width counts.
        wide = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
        return int(self.run(f"{wide} - Math.min({self._width}, document.documentElement.clientWidth)"))

    @property
    def console(self) -> list[str]:
        """Lines of the console, errors and broken rules of the page's policy among them."""
        lines = []
        for event in self._browser.events():
            parameters = event["params"]
            if event["method"] == "Runtime.consoleAPICalled":
                lines.append(" ".join(str(one.get("value")) for one in parameters["args"]))
            elif event["method"] == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                lines.append(details.get("exception", {}).get("description", details["text"]))
            elif event["method"] == "Log.entryAdded":
                lines.append(parameters["entry"]["text"])
        return lines

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for, the page itself and what stands in it left out."""
        asked = [
            event["params"]["request"]["url"]
            for event in self._browser.events()
            if event["method"] == "Network.requestWillBeSent" and event["params"].get("type") != "Document"
        ]
        return [url for url in asked if not url.startswith("data:")]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Writes a PNG of the page, or of what its window shows."""
        found = self._browser.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole)
        )
        path.write_bytes(base64.b64decode(found["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self._browser.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with it.

    Raises:
        RuntimeError: it does not start.
    """
    assert CHROMIUM is not None
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="attnport-browser-", ignore_cleanup_errors=True) as profile:
        # The shell puts the pipes where Chromium looks for them: Popen alone cannot renumber.
        line = f'exec "$@" 3<&{command_read} 4>&{answer_write}'
        ran = subprocess.Popen(
            ["bash", "-c", line, "chromium", CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        try:
            yield Browser(command_write, answer_read)
        finally:
            os.close(command_write)
            os.close(answer_read)
            ran.terminate()
            try:
                ran.wait(20)
            except subprocess.TimeoutExpired:
                ran.kill()
                ran.wait()
