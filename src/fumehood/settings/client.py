"""Every setting of the command line where it speaks to a server, with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from fumehood.settings.base import (
    NAME_RULE,
    PUBLIC_KEY_RULE,
    Settings,
    check_rules,
    is_loopback,
    is_name,
    is_public_key,
    is_token,
    is_url,
)


@dataclass(frozen=True, slots=True)
class ClientSettings(Settings):
    """Which server to speak to, and with which key."""

    TOKENS = ("client",)

    url: str | None = None
    """Address of the server. None: that of the context; without one that of your own `fumehood dev` while it runs, and
    else http://127.0.0.1:8080, where `fumehood server` listens unless told otherwise."""

    context: str | None = None
    """The name of a context that `fumehood login` made: a server, and the key for it. None: the current one, which
    `fumehood context use` changes. Its key goes to its own server alone, whatever `url` says."""

    client_token: str | None = field(default=None, repr=False, metadata={"variable": "FUMEHOOD_API_KEY"})
    """The key, or the administrator's token. None: look into `client_token_file`; without that too, the
    context's key is used at the context's address, and the token of your own `fumehood dev` where that listens."""

    client_token_file: Path | None = field(default=None, metadata={"variable": "FUMEHOOD_API_KEY_FILE"})
    """A file that holds only the key, readable by its owner alone. None: no file."""

    insecure_http: bool = False
    """Whether a key may go over http:// to another machine. Not unless said: whoever is on the way could read it."""

    receipt_root: str | None = None
    """The public key (hex) of the root whose list of receipt keys you rely on. None: look into
    `~/.config/fumehood/receipt-root`; without that too, nothing is verified: a list cannot vouch for itself."""

    receipt_keys_file: Path | None = None
    """The list of receipt keys for checking offline. None: `~/.config/fumehood/receipt-keys.json`, which
    `fumehood receipts fetch` writes."""

    client_token_config: Path | None = field(default=None, metadata={"derived": True})
    """Not a setting: the configuration file, when the key stands in it."""

    def __post_init__(self) -> None:
        check_rules(
            {
                "url must be like https://HOST:PORT, without credentials or a query": self.url is None
                or is_address(self.url),
                "FUMEHOOD_API_KEY must be visible ASCII characters: look for a blank or a line break in it": (
                    self.client_token is None or is_token(self.client_token)
                ),
                "FUMEHOOD_API_KEY and FUMEHOOD_API_KEY_FILE are both set: give one of them": self.client_token is None
                or self.client_token_file is None,
                f"context {NAME_RULE}": is_name(self.context),
                f"FUMEHOOD_RECEIPT_ROOT {PUBLIC_KEY_RULE}": is_public_key(self.receipt_root),
            }
        )


def is_local(url: str) -> bool:
    """Whether a server is on this machine, which no proxy needs to know."""
    return is_loopback(urlsplit(url).hostname or "")


def is_address(text: str) -> bool:
    """Whether a text can be the address of a server: no credentials in it, which would be shown, and no query."""
    try:
        parts = urlsplit(text)
        return is_url(text) and bool(parts.hostname) and parts.port != 0 and not _strays(parts)
    except ValueError:
        return False


def _strays(parts: SplitResult) -> bool:
    return "@" in parts.netloc or bool(parts.query) or bool(parts.fragment)
