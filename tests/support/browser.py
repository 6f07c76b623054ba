"""A real Chromium without a screen, driven by Selenium."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@contextlib.contextmanager
def chromium(*, width: int = 1280, height: int = 900) -> Iterator[Any]:
    """Yield a driver; skips with the reason where there is no browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="Selenium is not installed")
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("there is no chromium with its chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for argument in (*_ARGUMENTS, f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=programs[1])
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int, height: int) -> None:
    """Show the page as a screen of this size does, in CSS pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def complaints(driver: Any) -> list[str]:
    """Return what the browser complained of: errors of scripts, what the CSP refused."""
    return [one["message"] for one in driver.get_log("browser")]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    """One browser for the tests of a module."""
    with chromium() as browser:
        yield browser
