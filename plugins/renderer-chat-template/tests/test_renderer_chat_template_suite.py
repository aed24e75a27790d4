"""The conformance suite on real tokenizers and real templates."""

from __future__ import annotations

import ferrule_test_assets as assets
from ferrule_testkit import RendererSuite


class TestQwen3(RendererSuite):
    use = "chat_template"
    model = assets.qwen3


class TestQwen25(RendererSuite):
    use = "chat_template"
    model = assets.qwen25


class TestSmollm2(RendererSuite):
    use = "chat_template"
    model = assets.smollm2
    calls = False


class TestDeepseek(RendererSuite):
    use = "chat_template"
    model = assets.deepseek
