"""Small tokenizers and chat templates, made in the process, and a sampler's stand-in that writes the text it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from ferrule_renderer_chat_template import ChatTemplateRenderer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ferrule import Message, ModelSpec, Rendered, Tail, ToolSpec

CHATML = """
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}{{- '# Tools' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'system' and loop.first and tools %}
{%- elif m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Thinking stays while tools are called and goes when the user speaks again; consecutive answers share one turn.
THINKING = """
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or m.reasoning_content) %}
{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{%- endif %}{%- endif %}
"""

# Header ids, trimmed contents, JSON-escaped tool answers, one call at a time whose content is lost.
HEADERS = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}
{{- (m.tool_calls[0].function.arguments | tojson) + '}<|eot_id|>' }}
{%- elif m.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (m.content | tojson) + '<|eot_id|>' }}
{%- else %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

STRICT = """
{{- bos_token }}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) or m.role not in ['user', 'assistant'] %}
{{- raise_exception('Conversation roles must alternate user/assistant') }}{%- endif %}
{%- if m.role == 'user' %}{{- '[INST] ' + m.content + ' [/INST]' }}{%- else %}{{- ' ' + m.content + eos_token }}{%- endif %}
{%- endfor %}
"""

DROPPING = """
{%- for m in messages %}{%- if m.role != 'tool' %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>' + call.function.name + '</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# No closes: each message's opener ends the one before it. A tool's answer needs the call before it.
OPENERS = """
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|user|>\\n' + m.content }}
{%- elif m.role == 'assistant' %}{{- '<|assistant|>\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>' + call.function.name + '\\n' + (call.function.arguments | tojson) + '</tool_call>' }}{%- endfor %}
{%- elif m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role == 'assistant' and not messages[loop.index0 - 1].tool_calls %}
{{- raise_exception('a tool answers no call') }}{%- endif %}
{{- '<|observation|>\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- else %}{{- '<|system|>\\n' + m.content }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""

# Contents are lists of parts; an answer names its call by id.
PARTS = """
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'tool' %}{{- 'answer to ' + m.tool_call_id + ': ' }}{%- endif %}
{%- for part in m.content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>' + call.id + ' ' + call.function.name + '</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Shows the first of several calls and nothing of the others.
FIRST_CALL = """
{%- for m in messages %}
{%- if m.tool_calls %}
{{- '<|im_start|>assistant\\n' + m.tool_calls[0].function.name + ' ' + (m.tool_calls[0].function.arguments | tojson) + '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

TEMPLATES = {
    "first_call": FIRST_CALL,
    "chatml": CHATML,
    "thinking": THINKING,
    "headers": HEADERS,
    "strict": STRICT,
    "dropping": DROPPING,
    "openers": OPENERS,
    "parts": PARTS,
}
EOS = {"headers": "<|eot_id|>", "strict": "</s>", "openers": "<|endoftext|>"}
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|observation|>",
]
MARKUP = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = [
    "user\nassistant\nsystem\nThe user asks for a plan of day 12, and the answer is in the tool's output.\n\n",
    '{"name": "get_forecast", "arguments": {"day": 7}}\nassistant\n\nyo\n\n\n  indented text\n',
    "tool_call tool_response think <function=",
]


def train_tokenizer(kind: str = "bytes", spelled: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE; or, as ``blanks``, one that marks words by ▁ and sets one at the start of any text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=kind == "blanks"))
    if kind == "bytes":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(WORDS), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        extra: list[str] = []
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        alphabet = [chr(c) for c in range(32, 127)] + ["▁"]
        extra = [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=extra, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tokenizer.add_tokens([AddedToken(s, special=False, normalized=False) for s in MARKUP if s not in spelled])
    return tokenizer


@attrs.frozen(eq=False)
class Kit:
    """A renderer, the bare tokenizer under it, and ways to play with both."""

    renderer: ChatTemplateRenderer
    tokenizer: Tokenizer
    folder: Path

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        assert found is not None
        return found

    def text(self, ids: Any) -> str:
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def part(self, rendered: Rendered, kind: int) -> str:
        """The text of all tokens of one kind."""
        return self.text(rendered.ids[rendered.kinds == kind])

    def sample(
        self,
        messages: Sequence[Message],
        completion: str,
        tools: Sequence[ToolSpec] = (),
        stop: int | None = None,
        **more: Any,
    ) -> tuple[np.ndarray, np.ndarray, Tail]:
        """(prompt, completion, tail) as if the model had written *completion* after *messages*; cut where it ends in
        no stop token.
        """
        prompt = self.renderer.render(messages, tools)
        ids = np.array(self.ids(completion) + ([stop] if stop is not None else []), np.int32)
        parsed = self.renderer.parse(ids, tools, opened=prompt.opened)
        end = max(b for _, b in prompt.spans)
        last = int(ids[-1]) if len(ids) else -1
        tail = Tail(
            np.concatenate([prompt.ids[end:], ids]),
            len(prompt.ids) - end,
            last if last in self.renderer.stop_ids else "length",
            parsed.message,
            len(messages),
            tuple(m.role for m in messages)[-8:],
            () if parsed.closed else prompt.opened,
            tuple(tools),
            **more,
        )
        return prompt.ids, ids, tail


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Kit]:
    """Make a :class:`Kit`: a template's name (or its text), the tokenizer's kind, options of the renderer."""
    made: dict[Any, Kit] = {}

    def make(
        template: str = "chatml",
        kind: str = "bytes",
        spelled: tuple[str, ...] = (),
        eos: list[str] | None = None,
        **options: Any,
    ) -> Kit:
        known = (template, kind, spelled, tuple(eos or ()), json.dumps(options, sort_keys=True))
        if known not in made:
            tokenizer = train_tokenizer(kind, spelled)
            folder = tmp_path_factory.mktemp("tokenizer")
            PreTrainedTokenizerFast(
                tokenizer_object=tokenizer,
                eos_token=EOS.get(template, "<|im_end|>"),
                bos_token="<s>",
                pad_token="<|endoftext|>",
                chat_template=TEMPLATES.get(template, template),
                clean_up_tokenization_spaces=False,
            ).save_pretrained(str(folder))
            if eos:
                ends = {"eos_token_id": [tokenizer.token_to_id(e) for e in eos]}
                (folder / "generation_config.json").write_text(json.dumps(ends))
            renderer = ChatTemplateRenderer(ChatTemplateRenderer.Config(**options), ModelSpec(tokenizer=str(folder)))
            made[known] = Kit(renderer, Tokenizer.from_file(str(folder / "tokenizer.json")), folder)
        return made[known]

    return make
