"""Contexts: what is written is what is read, what others could read or change is refused, and no key strays."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import ConfigurationError
from fumehood.sdk import context_store
from fumehood.sdk.context_store import SERVICE, ContextStore, Ring
from fumehood.sdk.contexts import MOST_CONTEXTS, Context, Contexts, KeptIn, dump, parse, same_address

URL, OTHER_URL = "https://fumehood.example", "https://evil.example"
KEY = "fhk_secret-key"


class MemoryRing:
    """A keyring that holds what it is given, and may be locked."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.locked = False

    def get_password(self, service: str, username: str) -> str | None:
        self._check()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._check()
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._check()
        del self.kept[service, username]

    def _check(self) -> None:
        if self.locked:
            raise RuntimeError(f"locked: {KEY}")


@pytest.fixture
def ring() -> MemoryRing:
    return MemoryRing()


@pytest.fixture
def with_ring(tmp_path: Path, ring: MemoryRing) -> ContextStore:
    return ContextStore(tmp_path / "fumehood", ring=lambda: ring)


@pytest.fixture
def store(tmp_path: Path) -> ContextStore:
    return ContextStore(tmp_path / "fumehood", ring=lambda: None)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --- the model ---------------------------------------------------------------------------------------------

NAMES = st.from_regex(re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII), fullmatch=True)
ADDRESSES = st.builds(
    lambda scheme, host, port: f"{scheme}://{host}{port}",
    st.sampled_from(["http", "https"]),
    st.from_regex(r"[a-z]{1,10}(\.[a-z]{1,5}){0,2}", fullmatch=True),
    st.one_of(st.just(""), st.integers(1, 65535).map(lambda port: f":{port}")),
)
CONTEXTS = st.dictionaries(NAMES, st.builds(Context, ADDRESSES, st.sampled_from(KeptIn), st.booleans())).flatmap(
    lambda entries: st.builds(
        Contexts, st.one_of(st.none(), st.sampled_from(sorted(entries))) if entries else st.none(), st.just(entries)
    )
)


@given(CONTEXTS)
def test_what_is_written_is_what_is_read(contexts: Contexts) -> None:
    assert parse(dump(contexts)) == contexts


@given(st.text())
def test_whatever_a_file_holds_it_is_understood_or_refused(text: str) -> None:
    try:
        parse(text)
    except ConfigurationError as error:
        assert "\n" not in error.detail  # noqa: PT017 - either will do


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": "1"},
        {"current": "gone"},
        {"contexts": []},
        {"contexts": {"prod": {}}},
        {"contexts": {"../prod": {"url": URL, "key": "file", "insecure_http": False}}},
        {"contexts": {"prod": {"url": "file:///etc/passwd", "key": "file", "insecure_http": False}}},
        {"contexts": {"prod": {"url": "https://user:pw@x", "key": "file", "insecure_http": False}}},
        {"contexts": {"prod": {"url": URL, "key": "cloud", "insecure_http": False}}},
        {"contexts": {"prod": {"url": URL, "key": "file", "insecure_http": 1}}},
        {"contexts": {"prod": {"url": URL, "key": "file", "insecure_http": False, "more": 1}}},
    ],
)
def test_what_nobody_has_written_like_this_is_refused(change: dict[str, object]) -> None:
    told = json.loads(dump(Contexts("prod", {"prod": Context(URL, KeptIn.FILE)})))
    with pytest.raises(ConfigurationError):
        parse(json.dumps({**told, **change}))


def test_contexts_come_and_go() -> None:
    one, two = Context(URL, KeptIn.FILE), Context(OTHER_URL, KeptIn.NOWHERE)
    both = Contexts().with_entry("prod", one).with_entry("test", two)
    assert (both.current, both.named("prod"), both.named("test")) == ("test", one, two)
    assert both.using("prod").current == "prod"
    assert both.using(None).current is None
    assert both.without("prod") == Contexts("test", {"test": two})
    assert both.without("test").current is None
    with pytest.raises(ConfigurationError, match="did you mean prod"):
        both.named("prd")
    with pytest.raises(ConfigurationError, match="fumehood context ls"):
        both.using("xyz")
    with pytest.raises(ConfigurationError, match="fumehood login"):
        Contexts().named("prod")
    with pytest.raises(ConfigurationError, match="at most 64 letters"):
        both.with_entry("a b", one)


def test_there_is_a_bound() -> None:
    full = Contexts(None, {f"c{number}": Context(URL, KeptIn.FILE) for number in range(MOST_CONTEXTS)})
    assert full.with_entry("c1", Context(OTHER_URL, KeptIn.FILE)).named("c1").url == OTHER_URL
    with pytest.raises(ConfigurationError, match="context rm"):
        full.with_entry("one-more", Context(URL, KeptIn.FILE))


def test_a_slash_makes_no_other_server() -> None:
    assert same_address(f"{URL}/", URL)
    assert not same_address(URL, f"{URL}:444")
    assert not same_address(URL, URL.replace("https", "http"))


# --- on disk -----------------------------------------------------------------------------------------------


def test_nobody_has_logged_in(store: ContextStore) -> None:
    assert store.read() == Contexts()


def test_only_its_owner_can_read_any_of_it(store: ContextStore, tmp_path: Path) -> None:
    context = store.log_in("prod", URL, KEY)
    assert (context.kept_in, store.key("prod", context)) == (KeptIn.FILE, KEY)
    assert store.read() == Contexts("prod", {"prod": context})
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert KEY not in store.path.read_text()
    assert KEY not in repr(context)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_what_others_can_read_is_refused(store: ContextStore, mode: int) -> None:
    store.log_in("prod", URL, KEY)
    store.path.chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        store.read()
    with pytest.raises(ConfigurationError, match="chmod 600"):
        store.use(None)


def test_a_key_file_that_others_can_read_is_refused(store: ContextStore, tmp_path: Path) -> None:
    context = store.log_in("prod", URL, KEY)
    (file,) = (tmp_path / "fumehood/keys").iterdir()
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600") as caught:
        store.key("prod", context)
    assert KEY not in caught.value.detail


def test_a_folder_that_others_can_write_to_is_refused(store: ContextStore, tmp_path: Path) -> None:
    (tmp_path / "fumehood").mkdir(mode=0o700)
    (tmp_path / "fumehood").chmod(0o777)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        store.log_in("prod", URL, KEY)
    assert files(tmp_path) == set()


def test_a_link_is_not_followed(store: ContextStore, tmp_path: Path) -> None:
    (tmp_path / "fumehood").mkdir(mode=0o700)
    (tmp_path / "elsewhere").write_text(dump(Contexts()))
    (tmp_path / "elsewhere").chmod(0o600)
    store.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        store.read()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"x" * (context_store.LARGEST_FILE + 1)])
def test_nonsense_is_refused_with_what_to_do(store: ContextStore, content: bytes) -> None:
    store.path.parent.mkdir(mode=0o700)
    store.path.write_bytes(content)
    store.path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"contexts\.json"):
        store.read()


def test_a_change_that_fails_leaves_what_was(store: ContextStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.log_in("prod", URL, KEY)
    before = store.path.read_bytes()

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigurationError, match="No space left"):
        store.use(None)
    assert store.path.read_bytes() == before
    assert files(store.path.parent) == {"contexts.json", *(f for f in files(store.path.parent) if f.startswith("keys"))}


def _log_in_many(folder: Path, number: int) -> None:
    for one in range(10):
        ContextStore(folder, ring=lambda: None).log_in(f"c{number}-{one}", URL, KEY)


def test_no_change_is_lost_to_another(store: ContextStore) -> None:
    """Several terminals at once."""
    spawn = multiprocessing.get_context("fork")
    processes = [spawn.Process(target=_log_in_many, args=(store.path.parent, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(store.read().entries) == 40


def test_somebody_who_does_not_let_go_is_not_waited_for_for_ever(
    store: ContextStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_store, "LOCK_SECONDS", 0.1)
    with store._changing(), pytest.raises(ConfigurationError, match="another fumehood"):
        store.use(None)


# --- keys --------------------------------------------------------------------------------------------------


def test_an_address_that_somebody_changed_gets_no_key(store: ContextStore, with_ring: ContextStore) -> None:
    """Whoever can change the file cannot have the key sent to himself."""
    for one in (store, with_ring):
        one.log_in("prod", URL, KEY)
        one.path.write_text(one.path.read_text().replace(URL, OTHER_URL))
        context = one.read().named("prod")
        assert context.url == OTHER_URL
        with pytest.raises(ConfigurationError):
            one.key("prod", context)


def test_a_keyring_is_preferred(with_ring: ContextStore, ring: MemoryRing, tmp_path: Path) -> None:
    context = with_ring.log_in("prod", f"{URL}/", KEY)
    assert context.kept_in is KeptIn.KEYRING
    assert ring.kept == {(SERVICE, f"prod {URL}"): KEY}
    assert with_ring.key("prod", context) == KEY
    assert files(tmp_path) == {"fumehood/contexts.json"}
    assert with_ring.log_out("prod") is True
    assert ring.kept == {}


def test_a_keyring_that_does_not_take_it_is_no_obstacle(with_ring: ContextStore, ring: MemoryRing) -> None:
    ring.locked = True
    context = with_ring.log_in("prod", URL, KEY)
    assert (context.kept_in, with_ring.key("prod", context)) == (KeptIn.FILE, KEY)
    ring.locked = False
    assert with_ring.log_in("test", URL, KEY, in_file=True).kept_in is KeptIn.FILE
    assert ring.kept == {}


def test_a_locked_keyring_is_an_error_and_not_no_key(with_ring: ContextStore, ring: MemoryRing) -> None:
    context = with_ring.log_in("prod", URL, KEY)
    ring.locked = True
    with pytest.raises(ConfigurationError, match="unlock") as caught:
        with_ring.key("prod", context)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    ring.locked = False
    ring.kept.clear()
    with pytest.raises(ConfigurationError, match="fumehood login"):
        with_ring.key("prod", context)


def test_a_keyring_that_is_not_there_any_more(store: ContextStore, with_ring: ContextStore) -> None:
    context = with_ring.log_in("prod", URL, KEY)
    with pytest.raises(ConfigurationError, match=r"fumehood\[keyring\]"):
        store.key("prod", context)
    assert store.log_out("prod") is False
    assert store.read() == Contexts()


def test_a_keyring_that_never_answers_is_not_waited_for_for_ever(
    with_ring: ContextStore, ring: MemoryRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    context, forever = with_ring.log_in("prod", URL, KEY), threading.Event()
    monkeypatch.setattr(context_store, "RING_SECONDS", 0.05)
    monkeypatch.setattr(ring, "get_password", lambda *_: forever.wait())
    with pytest.raises(ConfigurationError, match="unlock"):
        with_ring.key("prod", context)
    forever.set()


def test_logging_in_again_leaves_no_old_key(with_ring: ContextStore, ring: MemoryRing, tmp_path: Path) -> None:
    with_ring.log_in("prod", URL, "old-key", in_file=True)
    with_ring.log_in("prod", URL, "new-key")
    assert files(tmp_path) == {"fumehood/contexts.json"}
    with_ring.log_in("prod", OTHER_URL, "newest-key")
    assert ring.kept == {(SERVICE, f"prod {OTHER_URL}"): "newest-key"}
    context = with_ring.log_in("prod", OTHER_URL, None)
    assert (ring.kept, with_ring.key("prod", context)) == ({}, None)


def test_logging_out_removes_the_key(store: ContextStore, tmp_path: Path) -> None:
    store.log_in("prod", URL, KEY)
    store.log_in("test", OTHER_URL, KEY)
    assert store.log_out("test") is True
    assert store.read().current is None
    assert len(files(tmp_path)) == 2
    with pytest.raises(ConfigurationError, match="no context"):
        store.log_out("test")


def test_a_keyring_that_keeps_nothing_safe_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = pytest.importorskip("keyring")
    from keyring.backends import fail, null

    for backend in (fail.Keyring(), null.Keyring()):  # type: ignore[no-untyped-call]
        monkeypatch.setattr(keyring, "get_keyring", lambda found=backend: found)
        assert context_store.desktop_ring() is None

    def broken() -> Ring:
        raise OSError(KEY)

    monkeypatch.setattr(keyring, "get_keyring", broken)
    assert context_store.desktop_ring() is None


def test_it_lies_where_configuration_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert ContextStore().path == tmp_path / ".config/fumehood/contexts.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert ContextStore().path == tmp_path / "xdg/fumehood/contexts.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert ContextStore().path == tmp_path / ".config/fumehood/contexts.json"
    assert os.fspath(tmp_path) in str(ContextStore().path)
