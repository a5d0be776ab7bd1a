"""What a session's container says of itself, so that a worker which lost its memory can find it again. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fumehood.images.admission import AdmittedImage
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.sessions.values import SessionName, SessionWish
from fumehood.sandbox.spec import SandboxSpec, network_of
from fumehood.wire.sandbox import NetworkProfile

LABEL_SESSION = "fumehood.session"
LABEL_OWNER = "fumehood.owner"
LABEL_IMAGE = "fumehood.session.image"
LABEL_DIGEST = "fumehood.session.digest"
LABEL_NETWORK = "fumehood.session.network"
LABEL_CREATED = "fumehood.session.created"
LABEL_ONCE = "fumehood.session.once"


def spec_of(wish: SessionWish, sandbox_id: str, created_ms: int, image: AdmittedImage) -> SandboxSpec:
    return SandboxSpec(
        sandbox_id=sandbox_id,
        image=image,
        limits=wish.limits,
        network=network_of(wish.network),
        waiting=wish.waiting,
        labels={
            **wish.labels,
            LABEL_SESSION: wish.name.session_id,
            LABEL_OWNER: wish.name.owner,
            LABEL_IMAGE: wish.image,
            LABEL_DIGEST: image.digest,
            LABEL_NETWORK: wish.network.value,
            LABEL_CREATED: str(created_ms),
            LABEL_ONCE: "true" if wish.once else "false",
        },
    )


def name_of(handle: Handle) -> SessionName | None:
    """Whose session a sandbox is; `None`: it is none."""
    labels = handle.labels
    if LABEL_SESSION not in labels or LABEL_OWNER not in labels:
        return None
    return SessionName(labels[LABEL_OWNER], labels[LABEL_SESSION])


def wish_of(labels: Mapping[str, str]) -> SessionWish:
    """As far as labels tell: the environment of its commands is in none, because it may hold secrets."""
    return SessionWish(
        name=SessionName(labels[LABEL_OWNER], labels[LABEL_SESSION]),
        image=labels.get(LABEL_IMAGE, ""),
        lease_ms=0,
        network=NetworkProfile(labels.get(LABEL_NETWORK, NetworkProfile.DENY_ALL)),
        once=is_once(labels),
    )


def is_once(labels: Mapping[str, str]) -> bool:
    return labels.get(LABEL_ONCE) == "true"


def created_ms_of(labels: Mapping[str, str]) -> int:
    said = labels.get(LABEL_CREATED, "")
    return int(said) if said.isdigit() else 0
