"""Image references: what is read, what it means, and what is refused."""

from __future__ import annotations

import ipaddress
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fumehood.errors import InvalidReferenceError
from fumehood.images import ImageReference
from fumehood.images.reference import MAX_TEXT, is_loopback_host

DIGEST = "sha256:" + "0123456789abcdef" * 4
HEX64 = "a3ed95caeb02ffe68cdd9fd84406680ae93d633cb16422d00e8a7c22955b46d4"

ACCEPTED = {
    # Docker's normalisation
    "python": ("docker.io", "library/python", "latest", None),
    "python:3.12": ("docker.io", "library/python", "3.12", None),
    "bitnami/redis": ("docker.io", "bitnami/redis", "latest", None),
    "docker.io/python": ("docker.io", "library/python", "latest", None),
    "docker.io/library/python:3": ("docker.io", "library/python", "3", None),
    "index.docker.io/python": ("docker.io", "library/python", "latest", None),
    f"python@{DIGEST}": ("docker.io", "library/python", None, DIGEST),
    f"python:3.12@{DIGEST}": ("docker.io", "library/python", "3.12", DIGEST),
    "localhost/app": ("localhost", "app", "latest", None),
    "localhost:5000": ("docker.io", "library/localhost", "5000", None),
    "myhost/app": ("docker.io", "myhost/app", "latest", None),
    # hosts and ports
    "test.com/repo:tag": ("test.com", "repo", "tag", None),
    "test:5000/repo": ("test:5000", "repo", "latest", None),
    f"test:5000/repo:tag@{DIGEST}": ("test:5000", "repo", "tag", DIGEST),
    "127.0.0.1:5055/fumehood/base:1": ("127.0.0.1:5055", "fumehood/base", "1", None),
    "[::1]:5000/app": ("[::1]:5000", "app", "latest", None),
    "[2001:db8::1]/app": ("[2001:db8::1]", "app", "latest", None),
    "[2001:db8:0:0:0:0:0:1]/app": ("[2001:db8::1]", "app", "latest", None),
    "xn--n3h.com/myimage:xn--n3h.com": ("xn--n3h.com", "myimage", "xn--n3h.com", None),
    # from the distribution project's own table
    "sub-dom1.foo.com/bar/baz/quux": ("sub-dom1.foo.com", "bar/baz/quux", "latest", None),
    "sub-dom1.foo.com/bar/baz/quux:some-long-tag": ("sub-dom1.foo.com", "bar/baz/quux", "some-long-tag", None),
    "b.gcr.io/test.example.com/my-app:test": ("b.gcr.io", "test.example.com/my-app", "test", None),
    "foo_bar.com:8080": ("docker.io", "library/foo_bar.com", "8080", None),
    "foo/foo_bar.com:8080": ("docker.io", "foo/foo_bar.com", "8080", None),
    "a__b/c---d": ("docker.io", "a__b/c---d", "latest", None),
    "a:_Tag.1-X": ("docker.io", "library/a", "_Tag.1-X", None),
    "gcr.io/" + "a" * 255: ("gcr.io", "a" * 255, "latest", None),
    "a:" + "t" * 128: ("docker.io", "library/a", "t" * 128, None),
    "gcr.io/" + HEX64: ("gcr.io", HEX64, "latest", None),
}

REJECTED = {
    # text
    "": "empty",
    " python": "white space",
    "python ": "white space",
    "python\n": "white space",
    "pyt\u00a0hon": "white space",
    "python\x00": "control character",
    "python\x7f": "control character",
    "pythön": "not ASCII",
    "a" * (MAX_TEXT + 1): "longer than",
    # schemes and credentials
    "https://docker.io/python": "scheme",
    "docker://python": "scheme",
    "user:secret@ghcr.io/app": "credentials",
    f"user@ghcr.io/app@{DIGEST}": "credentials",
    # digests
    "python@": "sha256",
    "python@sha256:abc": "sha256",
    "python@sha256:" + HEX64.upper(): "sha256",
    "python@sha512:" + HEX64 * 2: "sha256",
    f"python@{DIGEST}0": "sha256",
    f"python@{DIGEST}:tag": "sha256",
    f"python@{DIGEST}@{DIGEST}": "credentials",
    f"@{DIGEST}": "missing",
    # tags
    "python:": "no tag",
    "python:.a": "tag must",
    "python:-a": "tag must",
    "python:a:b": "tag must",
    "python:a/b": "valid host name|port",
    "ghcr.io/python:a/b": "tag must",
    "python:" + "t" * 129: "tag is longer",
    # repositories
    HEX64: "image id",
    ":tag": "missing",
    "ghcr.io/": "missing",
    "docker.io/": "missing",
    "ghcr.io/:tag": "missing",
    "/python": "each part",
    "ghcr.io//python": "each part",
    "ghcr.io/python/": "each part",
    "Python": "lower case",
    "Foo/bar": "lower case",
    "ghcr.io/Foo": "lower case",
    "a..b/c": "valid host name",
    "aa/asdf$$^/aa": "each part",
    "a/b___c": "each part",
    "a/-b": "each part",
    "a/b-": "each part",
    "a/b._c": "each part",
    "-test.com/a": "valid host name",
    "test-.com/a": "valid host name",
    "gcr.io/" + "a" * 256: "longer than 255",
    "a/" * 128 + "a": "longer than 255",
    # registries, one spelling each
    "GHCR.io/app": "lower case",
    "ghcr.io./app": "valid host name",
    ".ghcr.io/app": "valid host name",
    "a_b.com/app": "valid host name",
    "ghcr.io:/app": "port",
    "ghcr.io:0/app": "port",
    "ghcr.io:0443/app": "port",
    "ghcr.io:65536/app": "port",
    "ghcr.io:1:2/app": "port",
    "ghcr.io:x/app": "port",
    ":5000/app": "valid host name",
    "127.1/app": "IPv4",
    "127.0.0.01/app": "IPv4",
    "0x7f.1:5000/app": "IPv4",
    "2130706433:5000/app": "IPv4",
    "0x7f000001:5000/app": "IPv4",
    "256.0.0.1/app": "IPv4",
    "1.2.3.4.5/app": "IPv4",
    "[::1/app": "brackets",
    "[::1]5000/app": "brackets",
    "[::g]/app": "not valid",
    "[]:5000/app": "not valid",
    "[2001:DB8::1]/app": "upper-case",
    "[fe80::1%eth0]/app": "zone",
    "[::ffff:127.0.0.1]/app": "dots",
    "[::ffff:7f00:1]/app": "as IPv4",
    "::1/app": "port|host name",
    "a" * 64 + ".com/app": "valid host name",
    "a." * 127 + "com/app": "valid host name",
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_reads_what_docker_reads(text: str) -> None:
    """Each accepted text means exactly one registry, repository, tag and digest."""
    assert ImageReference.parse(text) == ImageReference(*ACCEPTED[text])


@pytest.mark.parametrize("text", REJECTED)
def test_refuses_and_says_why(text: str) -> None:
    """Each refusal names its cause."""
    with pytest.raises(InvalidReferenceError, match=REJECTED[text]):
        ImageReference.parse(text)


@pytest.mark.parametrize("text", ["user:hunter2@ghcr.io/app", "https://u:hunter2@h/x", "hunter2@h@h/x", "hunter2 @x"])
def test_a_refusal_never_repeats_the_text(text: str) -> None:
    """Somebody may have put a password into it."""
    with pytest.raises(InvalidReferenceError) as caught:
        ImageReference.parse(text)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("registry", "repository", "tag", "digest"),
    [
        ("docker", "a", "t", None),
        ("docker.io", "python", "t", None),
        ("index.docker.io", "library/python", "t", None),
        ("ghcr.io", "", "t", None),
        ("ghcr.io", "a", None, None),
        ("ghcr.io", "a", "", None),
        ("ghcr.io", "a", "t\n", None),
        ("ghcr.io", "a", None, "sha256:0"),
        ("ghcr.io\n", "a", "t", None),
        ("[::0:1]", "a", "t", None),
    ],
)
def test_every_value_is_valid_whoever_made_it(
    registry: str, repository: str, tag: str | None, digest: str | None
) -> None:
    """The constructor checks as `parse` does, so no other module needs to."""
    with pytest.raises(InvalidReferenceError):
        ImageReference(registry, repository, tag, digest)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("localhost/app", True),
        ("localhost:5000/app", True),
        ("127.0.0.1:5055/app", True),
        ("127.255.1.2/app", True),
        ("[::1]/app", True),
        ("[0:0:0:0:0:0:0:1]:5000/app", True),
        ("localhost.example.com/app", False),
        ("app.localhost/app", False),
        ("128.0.0.1/app", False),
        ("0.0.0.0:5000/app", False),
        ("[::2]/app", False),
        ("localhost", False),
        ("127.0.0.1:5055", False),
    ],
)
def test_knows_the_loopback_by_name(text: str, loopback: bool) -> None:
    """Policies and plain HTTP depend on it, so only certain names count."""
    assert ImageReference.parse(text).is_loopback is loopback


def test_the_name_is_what_an_engine_is_told() -> None:
    assert ImageReference.parse("python:3").name == "docker.io/library/python"
    assert ImageReference.parse("127.0.0.1:5055/fumehood/base").name == "127.0.0.1:5055/fumehood/base"


LABELS = st.from_regex(r"[a-z][a-z0-9-]{0,20}[a-z]", fullmatch=True)
HOSTS = st.one_of(
    st.lists(LABELS, min_size=2, max_size=4).map(".".join),
    st.sampled_from(["localhost", "docker.io"]),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6)
    .filter(lambda address: isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None)
    .map(lambda address: f"[{address}]")
    .filter(lambda text: "." not in text),
)
REGISTRIES = st.tuples(HOSTS, st.none() | st.integers(1, 65535)).map(
    lambda pair: pair[0] if pair[1] is None else f"{pair[0]}:{pair[1]}"
)
COMPONENTS = st.from_regex(r"[a-z0-9]{1,8}(?:(?:[._]|__|-{1,3})[a-z0-9]{1,8}){0,2}", fullmatch=True)
REPOSITORIES = st.lists(COMPONENTS, min_size=1, max_size=4).map("/".join)
TAGS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True)
DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64).map(lambda text: f"sha256:{text}")


@given(REGISTRIES, REPOSITORIES, st.none() | TAGS, st.none() | DIGESTS)
def test_its_spelling_reads_back_as_itself(registry: str, repository: str, tag: str | None, digest: str | None) -> None:
    """str and parse are inverse: evidence and logs name exactly one thing."""
    assume(registry != "docker.io" or "/" in repository)
    reference = ImageReference(registry, repository, tag if tag or digest else "latest", digest)
    assert ImageReference.parse(str(reference)) == reference


@given(st.text() | st.text(string.ascii_letters + string.digits + "./:@-_[]% \n", max_size=40))
def test_any_text_is_refused_or_has_one_normal_form(text: str) -> None:
    """No text makes the parser fail otherwise, and normalising twice changes nothing."""
    try:
        reference = ImageReference.parse(text)
    except InvalidReferenceError:
        return
    assert ImageReference.parse(str(reference)) == reference


@given(st.text())
def test_loopback_is_a_question_about_any_text(host: str) -> None:
    """A URL's host is not one of ours: any text has an answer."""
    assert is_loopback_host(host) in (True, False)
