"""Conformance suites: what a plugin of a kind must do, as tests that its author runs by naming the plugin."""

from __future__ import annotations

import pytest

# Before the suites are imported: a failed check should show its values, as one in a test module does.
pytest.register_assert_rewrite("ferrule_testkit.renderers")

from .renderers import RendererSuite  # noqa: E402

__all__ = ["RendererSuite"]
