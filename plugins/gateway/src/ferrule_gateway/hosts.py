"""Which addresses are of this machine alone."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches *host*: ``localhost``, or a loopback address. A name may lead anywhere."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
