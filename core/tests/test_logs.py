"""Logs of a library: none, until an application asks for them."""

from __future__ import annotations

import subprocess
import sys

SAY = "import ferrule; ferrule.get_logger('acme').warning('disk_full', free_mb=3)"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_nothing_is_printed_and_the_logging_library_is_not_even_imported() -> None:
    done = run(f"{SAY}; import sys; print('structlog' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_an_application_that_configured_structlog_gets_the_event_with_its_values() -> None:
    json = "structlog.processors.JSONRenderer(sort_keys=True)"
    done = run(f"import structlog; structlog.configure(processors=[{json}]); {SAY}")
    assert done.stdout == '{"event": "disk_full", "free_mb": 3, "logger": "acme"}\n'
