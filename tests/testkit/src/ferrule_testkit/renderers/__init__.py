"""The suite for renderers."""

from __future__ import annotations

from .bridging import BridgeChecks
from .parsing import ParseChecks
from .rendering import RenderChecks
from .spelling import SpellingChecks

__all__ = ["RendererSuite"]


class RendererSuite(RenderChecks, BridgeChecks, SpellingChecks, ParseChecks):
    """All that a renderer must do. Name the renderer and its model, and every check runs::

        class TestMine(RendererSuite):
            use = "mine"
            options = {"family": "qwen3"}
            model = ModelSpec(tokenizer="models/qwen3")

    ``use``      a name, ``module:Class``, ``file.py:Class`` beside the test's file, or the class itself
    ``options``  the plugin's own, as they would stand in a configuration
    ``model``    a ModelSpec, the tokenizer's folder, or a function of no arguments that answers either
    ``calls``    False where the format has no tool calls: the renderer must then refuse them by name
    ``reasoning``  False where a reply is written without its reasoning
    ``xfails``   checks that are known to fail, each with its reason: ``{"test_name": "why"}``, or
                 ``"test_name[case]"``. One that passes after all fails.

    ``version`` rises when checks are added that a renderer which passed so far may fail.
    """

    version = 1
