"""What the engine says about images and containers, as our own values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fumehood.errors import SandboxStartError
from fumehood.sandbox.docker.plan import LABEL_SANDBOX, observe
from fumehood.sandbox.driver import Handle, Inspection, State
from fumehood.sandbox.spec import ROOT, SANDBOX_USER, User

LABEL_USER = "fumehood.user"


def image_user(declared: str) -> User:
    """The image's USER as numbers. A name would have to be looked up in a file that the image's author controls."""
    uid, _, gid = declared.partition(":")
    if uid in ("", "root", "0"):
        return ROOT if gid in ("", "root", "0") else _numeric("0", gid)
    return _numeric(uid, gid or uid)


def _numeric(uid: str, gid: str) -> User:
    if not (uid.isascii() and uid.isdigit() and gid.isascii() and gid.isdigit()):
        raise SandboxStartError("the image names its user by a name: only numbers can be honoured")
    return User(int(uid), int(gid))


def handle_listed(listed: Mapping[str, Any]) -> Handle:
    labels = dict(listed.get("Labels") or {})
    return Handle(labels.get(LABEL_SANDBOX, ""), str(listed["Id"]), labels)


def handle_of(inspected: Mapping[str, Any]) -> Handle:
    return handle_listed({"Id": inspected["Id"], "Labels": inspected["Config"].get("Labels")})


def label_user(handle: Handle) -> User:
    uid, _, gid = handle.labels.get(LABEL_USER, "").partition(":")
    return User(int(uid), int(gid)) if uid and gid else SANDBOX_USER


def inspection(inspected: Mapping[str, Any]) -> Inspection:
    state = inspected["State"]
    if state.get("Running"):
        kind = State.RUNNING
    elif state.get("Status") == "created":
        kind = State.CREATED
    else:
        kind = State.ENDED
    return Inspection(
        state=kind,
        exit_code=int(state["ExitCode"]) if kind is State.ENDED else None,
        oom_killed=bool(state.get("OOMKilled")),
        isolation=observe(inspected),
    )
