"""Which proxy a download goes through, for the sentence that says that it failed.

Installers and the hub's library read the same variables; a proxy that hangs looks like a dead network to
whoever has forgotten that it is set.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

_VARIABLES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def proxy_in_use() -> str:
    """` and the proxy http://host:port (HTTPS_PROXY)`, or nothing. Name and password are left out."""
    name = next((name for name in _VARIABLES if os.environ.get(name)), None)
    if name is None:
        return ""
    address = os.environ[name]
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    except ValueError:
        place = "that cannot be read"
    return f" and the proxy {place} ({name})"
