"""Get the browser: `python -m tests.browser` installs Chromium if this machine has none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.browser.chromium import chromium


def main() -> int:
    """Install it with apt-get where that may be done; else say how."""
    if chromium() is not None:
        return 0
    command = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        print(
            "These tests need Chromium. Install it, on Debian with\n"
            f"  sudo {' '.join(command)}\nor name one: CHROMIUM=/path/to/chromium",
            file=sys.stderr,
        )
        return 1
    subprocess.run(["apt-get", "update"], check=True, stdout=subprocess.DEVNULL)
    return subprocess.run(command, stdout=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
