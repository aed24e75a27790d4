"""Configuration: TOML to attrs, every mistake in one report."""

from .use import Use

__all__ = ["Use"]
