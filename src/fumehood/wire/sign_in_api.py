"""Signing in to the web console with an API key."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.wire.base import WireModel

SIGN_IN_PATH = "/v1/sign-in"
SIGN_OUT_PATH = "/v1/sign-out"
BROWSER_HEADER = "x-fumehood-browser"
"""A page of another site cannot add it to a request: without it a cookie opens nothing."""
LONGEST_TOKEN = 1024


class SignInRequest(WireModel):
    """Who signs in."""

    key: Annotated[
        str, Field(min_length=1, max_length=LONGEST_TOKEN, description="An API key, or the administrator's token")
    ]
