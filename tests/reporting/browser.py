"""Opens a page in headless Chromium at a given width and says what a reader would have met."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
    "--virtual-time-budget=8000",
    "--dump-dom",
    "--window-size=1400,1000",
)

# A window cannot be as narrow as a phone, a frame can.
_FRAME = """<!doctype html><meta charset="utf-8"><iframe id="page" style="width:%dpx;height:900px;border:0"></iframe>
<script>
const frame = document.getElementById("page");
frame.onload = async () => {
  const page = frame.contentDocument, root = page.documentElement;
  const overflow = () => Math.max(root.scrollWidth, page.body.scrollWidth) - root.clientWidth;
  const found = { overflow: overflow() };
  const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  try { found.result = await (async (page, window, wait) => { %s })(page, frame.contentWindow, wait); }
  catch (error) { found.error = String(error); }
  found.overflow = Math.max(found.overflow, overflow());
  document.body.dataset.found = JSON.stringify(found);
};
frame.src = "%s";
</script>"""


@dataclass(frozen=True)
class Visit:
    """What was found: console lines, pixels by which the page is wider than its window, the script's result."""

    console: list[str]
    overflow: int
    result: object


def visit(page: Path, width: int, script: str = "return null;") -> Visit:
    """Opens `page` at `width` pixels; `script` sees `page` (its document), `window` and `wait(ms)`.

    Raises:
        RuntimeError: the browser did not finish, or the script failed.
    """
    assert CHROMIUM is not None
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(_FRAME % (width, script, page.name), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="attnport-browser-", ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", frame.as_uri()]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    match = re.search(r'data-found="([^"]*)"', ran.stdout)
    if match is None:
        raise RuntimeError(f"the browser gave no result: {ran.stderr[-2000:]}")
    found = json.loads(html.unescape(match[1]))
    if "error" in found:
        raise RuntimeError(f"the script failed: {found['error']}")
    console = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return Visit(console, found["overflow"], found["result"])
