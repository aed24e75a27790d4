"""What renderers share: text to tokens with offsets, control-token text kept literal, the kinds of tokens, answers paired
with their calls, and completions read back by the tools' schemas.
"""

from .encoding import MARKUP, Encoder, Guard, Tokens, Unencodable, clean_text, token_kinds
from .ordering import answer_order, delta_order, probe_history, refused_delta
from .parsing import CallIds, ReplyParser, read_call
from .schema import Unreadable, typed_arguments

__all__ = [
    "MARKUP",
    "CallIds",
    "Encoder",
    "Guard",
    "ReplyParser",
    "Tokens",
    "Unencodable",
    "Unreadable",
    "answer_order",
    "clean_text",
    "delta_order",
    "probe_history",
    "read_call",
    "refused_delta",
    "token_kinds",
    "typed_arguments",
]
