"""Repositories that are uploaded for jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.wire.base import WHOLE, WireModel

BUNDLES_PATH = "/v1/bundles"
SOURCE_FORM = r"^bundle:sha256:[0-9a-f]{64}$"
MAX_BUNDLE_BYTES = 64 * 1024 * 1024


class BundleView(WireModel):
    source: Annotated[str, Field(pattern=SOURCE_FORM)]
    """For `repo.source` of a job."""
    size: Annotated[int, WHOLE, Field(ge=1, le=MAX_BUNDLE_BYTES)]
    """In bytes."""
