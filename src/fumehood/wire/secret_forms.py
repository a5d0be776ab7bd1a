"""Texts that look like secrets: the forms that their makers gave them in order to be recognised.

Only forms that nothing else has are here. A password that somebody thought of looks like any other text, and forty
characters of a cloud's secret key like any other hash: nobody can tell, and whoever guessed would refuse commit ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_WORD = r"(?<![A-Za-z0-9_-])"
"""Where a word begins: in the middle of one, a few letters mean nothing, and to look there would take long."""
_END = r"(?![A-Za-z0-9])"
_NO_PASSWORD = (
    r"(?!(?:"
    r"[0-9]{1,5}@sha(?:256|384|512):|"
    r"(?:\$\{[A-Za-z_][A-Za-z0-9_.-]{0,127}\}|\$\([A-Za-z_][A-Za-z0-9_.-]{0,127}\)|\$[A-Z_][A-Z0-9_]{0,127}|"
    r"\{\{[A-Za-z0-9_.-]{1,128}\}\}|<[A-Za-z0-9_-]{1,64}>|\*{1,64})@))"
)
"""Where a password could stand: the port of a registry whose image has a digest, or the place of something that is to
be filled in elsewhere. A variable with a value of its own (`${NAME:-value}`) is none of these."""

_FORMS: Mapping[str, str] = {
    "a private key": r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|"
    + _WORD
    + r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    "an AWS access key": _WORD + r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}" + _END,
    "a GitHub token": _WORD + r"(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9]{22}_)",
    "a GitLab token": _WORD + r"gl(?:pat|ptt|dt|rt|cbt|soat|ft|imt|agent)-[A-Za-z0-9_-]{20}",
    "a Slack token": _WORD + r"(?:xox[abeoprs]-[A-Za-z0-9]{1,16}-[A-Za-z0-9-]{10}|xapp-[0-9]-[A-Z0-9]{6,16}-[0-9]{6})",
    "a Slack webhook": r"hooks\.slack\.com/(?:services|workflows)/T[A-Z0-9]{6,14}/",
    "a Google API key": _WORD + r"AIza[A-Za-z0-9_-]{35}" + _END,
    "a Google OAuth secret": _WORD + r"(?:GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{20})",
    "a Stripe key": _WORD + r"(?:[sr]k_(?:live|test)_[A-Za-z0-9]{16}|whsec_[A-Za-z0-9+/]{32})",
    "a model provider's key": _WORD + r"sk-(?:(?:proj|ant|svcacct|admin|or)-[A-Za-z0-9_-]{20}|[A-Za-z0-9]{32})",
    "a JSON Web Token": _WORD + r"eyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8,16384}\.[A-Za-z0-9_-]{8}",
    "an npm token": _WORD + r"npm_[A-Za-z0-9]{36}" + _END,
    "a PyPI token": _WORD + r"pypi-AgEI[A-Za-z0-9_-]{50}",
    "a Hugging Face token": _WORD + r"hf_[A-Za-z0-9]{34}" + _END,
    "a Docker token": _WORD + r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{27}",
    "a Vault token": _WORD + r"hv[sbr]\.[A-Za-z0-9_-]{24}",
    "a DigitalOcean token": _WORD + r"do[opr]_v1_[a-f0-9]{64}" + _END,
    "a SendGrid key": _WORD + r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "an Azure storage key": r"AccountKey=[A-Za-z0-9+/]{86}==",
    "a key of this system": _WORD + r"(?:fhk_[A-Za-z0-9-]{12,64}_[A-Za-z0-9_-]{20}|fha_[A-Za-z0-9_-]{20})",
    "a password in an address": r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s/:@]{0,256}:"
    + _NO_PASSWORD
    + r"[^\s/@]{1,256}@",
}
"""What it is, for people, and how it looks. Repetitions are bounded: a long text must not take long."""

_COMPILED = tuple((name, re.compile(form)) for name, form in _FORMS.items())


def secret_in(text: str) -> str | None:
    """What a text seems to hold that is secret; None: nothing that can be recognised."""
    return next((name for name, form in _COMPILED if form.search(text) is not None), None)
