"""The page in a real Chromium. Needs chromium and its driver (Debian: chromium, chromium-driver)
and selenium; without them these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
DRIVER = shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    None in (BROWSER, DRIVER, find_spec("selenium")),
    reason="no selenium, or no chromium with its chromedriver",
)
FLAGS = [
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-sync",
]
FLAGS += ["disable-component-update", "disable-dev-shm-usage", "hide-scrollbars"]


def start_browser(profile: Path) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in [*FLAGS, f"user-data-dir={profile}"]:
        options.add_argument(f"--{flag}")
    options.add_argument("about:blank")  # else it opens its start page, which asks the network
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(str(DRIVER), log_output=os.devnull)
    with webdriver.Chrome(options=options, service=service) as driver:
        yield driver


def set_screen(
    browser: Any, width: int = 1200, scheme: str = "light", scripts: bool = True, media: str = ""
) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
