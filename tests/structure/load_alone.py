"""Load every plugin that the distribution named on the command line offers, through the registry; fail where one
does not load.

Run in an environment that holds core and that distribution alone, so that an undeclared dependency shows.
"""

import sys
from pathlib import Path

from ferrule.plugins import Registry


def main(distribution: str) -> None:
    registry = Registry.discover()
    mine = [c for c in registry.candidates() if c.dist.key == distribution]
    if not mine:
        sys.exit(f"{distribution} offers no plugin")
    for candidate in mine:
        cls = registry.resolve(candidate.kind, candidate.name, Path())
        print(f"{distribution}: {candidate.kind} {candidate.name} -> {cls.__module__}:{cls.__qualname__}")


if __name__ == "__main__":
    main(sys.argv[1])
