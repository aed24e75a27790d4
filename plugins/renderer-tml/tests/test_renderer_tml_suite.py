"""The conformance suite, once per format that the package writes."""

from __future__ import annotations

from ferrule_testkit import RendererSuite


class TestQwen3(RendererSuite):
    use = "tml"
    options = {"family": "qwen3"}


class TestQwen35(RendererSuite):
    use = "tml"
    options = {"family": "qwen3_5"}


class TestNemotron(RendererSuite):
    use = "tml"
    options = {"family": "nemotron_3"}


class TestGlm(RendererSuite):
    use = "tml"
    options = {"family": "glm_5_2"}


class TestDeepSeekV4(RendererSuite):
    use = "tml"
    options = {"family": "deepseek_v4"}


class TestDeepSeekV3(RendererSuite):
    use = "tml"
    options = {"family": "deepseek_v3"}
    calls = False
    reasoning = False


class TestKimi(RendererSuite):
    use = "tml"
    options = {"family": "kimi_k2_5"}


class TestHarmony(RendererSuite):
    use = "tml"
    options = {"family": "gpt_oss", "args": {"current_date": "2026-01-01"}}
