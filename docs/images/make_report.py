"""Makes `report.png`, the picture in the README, from a real page: `python docs/images/make_report.py out/minilm`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH, HEIGHT = 1280, 1330
MAX_BYTES = 300_000


def main() -> None:
    """Takes the head of the page, in the light colours, and refuses a picture that is too large for a README."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    page = (Path(sys.argv[1]) / "report.html").resolve(strict=True)
    picture = Path(__file__).with_name("report.png")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with tempfile.TemporaryDirectory(prefix="attnport-picture-", ignore_cleanup_errors=True) as profile:
        flags += [f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}"]
        subprocess.run([browser, *flags, page.as_uri()], check=True, capture_output=True, timeout=120)
    size = picture.stat().st_size
    if size > MAX_BYTES:
        sys.exit(f"{picture} has {size} bytes; at most {MAX_BYTES} are wanted.")
    print(f"{picture}: {size} bytes")


if __name__ == "__main__":
    main()
