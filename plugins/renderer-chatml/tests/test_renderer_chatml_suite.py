"""The conformance suite of renderers, once per family, and once per choice about thinking."""

from __future__ import annotations

import ferrule_test_assets as assets
from ferrule_testkit import RendererSuite


class TestQwen3(RendererSuite):
    use = "chatml"
    model = staticmethod(assets.qwen3)


class TestQwen3Kept(RendererSuite):
    use = "chatml"
    model = staticmethod(assets.qwen3)
    options = {"thinking": "keep"}


class TestQwen3Stripped(RendererSuite):
    use = "chatml"
    model = staticmethod(assets.qwen3)
    options = {"thinking": "strip"}


class TestQwen3InXml(RendererSuite):
    use = "chatml"
    model = staticmethod(assets.qwen3)
    options = {"tool_format": "xml", "enable_thinking": False}
    reasoning = False


class TestQwen25(RendererSuite):
    use = "chatml"
    model = staticmethod(assets.qwen25)


class TestQwen35(RendererSuite):
    use = "chatml"
    model = staticmethod(assets.qwen35)


class TestQwen35InHermes(RendererSuite):
    use = "chatml"
    model = staticmethod(assets.qwen35)
    options = {"tool_format": "hermes", "enable_thinking": False, "thinking": "keep"}
    reasoning = False


class TestSmolLM2(RendererSuite):
    use = "chatml"
    model = staticmethod(assets.smollm2)
