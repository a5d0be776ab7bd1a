"""Signing in to the web console with an API key."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.wire.base import WireModel

SIGN_IN_PATH = "/v1/sign-in"
SIGN_OUT_PATH = "/v1/sign-out"
BROWSER_HEADER = "x-fumehood-browser"
"""Pages of other sites cannot send this header, and a cookie counts only together with it."""
MARK_FORM = r"^[A-Za-z0-9_-]{16,128}$"
LONGEST_TOKEN = 1024
"""A cookie that holds a longer one could exceed what browsers store."""


class SignInRequest(WireModel):
    """Who signs in."""

    key: Annotated[
        str,
        Field(pattern=r"^[!-~]+$", max_length=LONGEST_TOKEN, description="An API key, or the administrator's token"),
    ]
