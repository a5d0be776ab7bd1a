"""`fumehood receipts`: whose receipts count. The root signs the list of keys; servers publish it, and readers pin the
root."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from fumehood.cli import given, receipt_files, receipts_rotate, show
from fumehood.cli.client import Api, ApiError
from fumehood.cli.exits import CommandError, UsageError
from fumehood.cli.options import Remote, grouped
from fumehood.cli.receipt_files import HOW_TO_PIN, ROOT_KEY, RefusedError, Root, RootKeyFile
from fumehood.errors import ConflictError, NotFoundError, UnverifiedError
from fumehood.verify.dsse import SigningKey, is_binding
from fumehood.verify.keylist import KeyList, ListedKey, published, read_published, root_key, root_of

app = typer.Typer(no_args_is_help=True)
app.command("key")(receipts_rotate.key)
app.command("rotate")(receipts_rotate.rotate)

PATH = "/v1/receipt-keys"
TRIES = 3
MOST_WORKERS = 10_000
PAGE = 200
ANNOUNCED = "receipt_key"
"""In what a worker says of itself: its public key."""

Wanted = Annotated[str, typer.Argument(metavar="KEYID|NAME", help="A key's id, or the worker whose key it is.")]


@app.command("init")
def init(
    *,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the root's private key goes, with mode 0600.")
    ] = ROOT_KEY,
    as_json: show.Json = False,
) -> None:
    """Make the root that signs the list of keys. Its public key is printed: readers pin it."""
    root = receipt_files.new_root(out)
    public = root.public_key.hex()
    if as_json:
        show.document({"root": public, "root_key_file": str(out.expanduser())})
        return
    typer.echo(public)
    show.console(stderr=True).print(
        f"the private key is in {out.expanduser()}: keep it, and a copy, off the servers; the line above is the public "
        "one, for the servers' receipt_root and for everybody who verifies"
    )


@app.command("list")
@grouped
def listed(*, root: Root = None, remote: Remote) -> None:
    """Show the keys that the server publishes, and whether they are by the root that you rely on."""
    relied_on = receipt_files.pinned(root)
    with remote.opened() as api:
        document = _fetched(api)
    keys = _checked(document, relied_on if relied_on is not None else _own_root(document))
    if remote.as_json:
        view = {"root": document["root"], "pinned": relied_on is not None, **keys.model_dump(mode="json")}
        show.document(view)
        return
    rows = [
        [key.worker, key.key_id, _state(key), show.local(_text(key.not_before)), _because(key)] for key in keys.keys
    ]
    show.table(["worker", "key id", "state", "since", "why"], rows, whole=["worker", "key id"])
    err = show.console(stderr=True)
    err.print(f"version {keys.version} of {show.local(_text(keys.issued_at))}, by the root {document['root']}")
    if relied_on is None:
        err.print(f"no root is pinned, so this is the server's word: {HOW_TO_PIN}")


@app.command("fetch")
@grouped
def fetch(
    *,
    root: Root = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there, and not where `verify` looks by itself.")
    ] = None,
    remote: Remote,
) -> None:
    """Keep the list of keys for checking offline, if it is by the root that you rely on. --root pins that for good."""
    relied_on = receipt_files.relied_on(root)
    with remote.opened() as api:
        document = _fetched(api)
    keys = _checked(document, relied_on)
    if root is not None:
        receipt_files.pin(relied_on)
    path = receipt_files.keep_keys(document, out, relied_on)
    remote.tell(
        {"file": str(path), "version": keys.version, "keys": len(keys.keys), "root": relied_on.hex()},
        f"{len(keys.keys)} keys, version {keys.version}, are in {path}",
    )


@app.command("enroll")
@grouped
def enroll(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The worker's name, which its receipts bear.")],
    *,
    key: Annotated[
        str | None, typer.Option(metavar="HEX", help="Its public key; else the one that it announces to the server.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="From when on its receipts count, or how long ago; else from now."),
    ] = None,
    root_key_file: RootKeyFile = ROOT_KEY,
    remote: Remote,
) -> None:
    """Let a worker's receipts count. Another key that it had is retired: what that signed until now still counts."""
    now = dt.datetime.now(dt.UTC)
    begin = given.moment(since, "--since", now)
    root = receipt_files.root_in(root_key_file)
    with remote.opened() as api:
        public = _given_key(key) if key is not None else _announced(api, name)
        changed = _change(
            api, root, lambda keys: keys.enrolled(name, public, now, None if begin is None else _moment(begin)), name
        )
    _tell(remote, changed, f"receipts of {name} count, with the key {public.hex()}")


@app.command("retire")
@grouped
def retire(key: Wanted, *, root_key_file: RootKeyFile = ROOT_KEY, remote: Remote) -> None:
    """Let a key count no more from now on. What it signed until now still does."""
    root = receipt_files.root_in(root_key_file)
    with remote.opened() as api:
        changed = _change(api, root, lambda keys: keys.retired(key, dt.datetime.now(dt.UTC)), key)
    _tell(remote, changed, f"what {key} signs from now on does not count")


@app.command("revoke")
@grouped
def revoke(
    key: Wanted,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; whoever is refused because of it is told.")],
    root_key_file: RootKeyFile = ROOT_KEY,
    remote: Remote,
) -> None:
    """Let nothing count that a key ever signed, since somebody else may have it."""
    if not 1 <= len(reason) <= 500:
        raise UsageError("--reason has 1 to 500 characters")
    root = receipt_files.root_in(root_key_file)
    with remote.opened() as api:
        changed = _change(api, root, lambda keys: keys.revoked(key, dt.datetime.now(dt.UTC), reason), key)
    _tell(
        remote,
        changed,
        f"nothing that {key} ever signed counts any more; who verifies offline needs the new list: `receipts fetch`",
    )


@app.command("adopt")
@grouped
def adopt(
    old: Annotated[str, typer.Argument(metavar="OLD_ROOT", help="The public key of the root that signed it so far.")],
    *,
    root_key_file: RootKeyFile = ROOT_KEY,
    remote: Remote,
) -> None:
    """Sign the published list with another root. First set receipt_root to the new one on all servers."""
    root = receipt_files.root_in(root_key_file)
    with remote.opened() as api:
        keys = _checked(_fetched(api), _given_key(old, "OLD_ROOT"))
        changed = keys.model_copy(update={"version": keys.version + 1, "issued_at": dt.datetime.now(dt.UTC)})
        api.put(PATH, published(changed, root))
    _tell(remote, changed, f"the list is by the root {root.public_key.hex()} now")


# --- asking and changing -----------------------------------------------------------------------------------


def _fetched(api: Api) -> Any:
    try:
        return api.get(PATH)
    except ApiError as error:
        if error.status != 404:
            raise
        raise CommandError(
            f"{api.url} has published no list of keys yet: `fumehood receipts enroll NAME` makes the first"
        ) from None


def _checked(document: Any, root: bytes) -> KeyList:
    try:
        return read_published(document, root)
    except UnverifiedError as error:
        raise RefusedError(error.reason, f"the server's list: {error.detail}") from None


def _own_root(document: Any) -> bytes:
    try:
        return root_of(document)
    except UnverifiedError as error:
        raise RefusedError(error.reason, f"the server's list: {error.detail}") from None


def _change(api: Api, root: SigningKey, make: Callable[[KeyList], KeyList], wanted: str) -> KeyList:
    """Read, change, publish; again where somebody else was quicker."""
    for left in reversed(range(TRIES)):
        keys = _current(api, root)
        changed = _made(make, keys, wanted)
        if changed is keys:
            return keys
        try:
            api.put(PATH, published(changed, root))
        except ApiError as error:
            if error.status != 409 or left == 0 or _current(api, root).version < changed.version:
                raise
        else:
            return changed
    raise AssertionError  # pragma: no cover - the last try returns or raises


def _made(make: Callable[[KeyList], KeyList], keys: KeyList, wanted: str) -> KeyList:
    try:
        return make(keys)
    except NotFoundError:
        known = {key.key_id for key in keys.keys} | {key.worker for key in keys.keys}
        raise given.no_such("key or worker", wanted, known) from None
    except ConflictError as error:
        raise CommandError(f"{wanted}: {error.detail}") from None
    except ValidationError:
        raise UsageError(
            f"{wanted}: the list takes no such name, or is full; a name is up to 128 of A-Z a-z 0-9 . _ : @ -"
        ) from None


def _current(api: Api, root: SigningKey) -> KeyList:
    """The published list; an empty one before the first."""
    try:
        document = api.get(PATH)
    except ApiError as error:
        if error.status != 404:
            raise
        return KeyList.model_construct(version=0, issued_at=dt.datetime.now(dt.UTC), keys=())
    if _own_root(document) != root.public_key:
        raise CommandError(
            f"the published list is by the root {document['root']}, and this root key is {root.public_key.hex()}: use "
            "the other one's file, or change the root (`fumehood receipts adopt --help`)"
        )
    return _checked(document, root.public_key)


def _announced(api: Api, name: str) -> bytes:
    found, _ = api.listed("/v1/workers", "workers", most=MOST_WORKERS, page=PAGE)
    known = {one["worker_id"]: one.get("metadata", {}).get(ANNOUNCED) for one in found}
    if name not in known:
        raise given.no_such("worker", name, known)
    if known[name] is None:
        raise CommandError(f"{name} is there, and announces no receipt key: give its public key with --key HEX")
    return _given_key(known[name], f"the key that {show.plain(name)} announces")


def _given_key(text: str, where: str = "--key") -> bytes:
    try:
        public = root_key(text)
    except UnverifiedError as error:
        raise UsageError(f"{where}: {error.detail}") from None
    if not is_binding(public):
        raise UsageError(f"{where}: this key binds nobody, since its signatures would fit other texts too")
    return public


# --- showing -----------------------------------------------------------------------------------------------


def _tell(remote: Remote, keys: KeyList, sentence: str) -> None:
    remote.tell({"version": keys.version, "keys": len(keys.keys)}, f"{sentence} (version {keys.version} of the list)")


def _state(key: ListedKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "good" if key.not_after is None else f"until {show.local(_text(key.not_after))}"


def _because(key: ListedKey) -> str:
    return key.revoked_because or ""


def _text(at: dt.datetime) -> str:
    return at.isoformat()


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)
