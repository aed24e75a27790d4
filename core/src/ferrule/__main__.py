"""``python -m ferrule``: the same as the ``ferrule`` command."""

from .cli import main

main()
