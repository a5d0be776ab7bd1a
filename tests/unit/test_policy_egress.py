"""Names that the network profile `restricted` leads to: what matches, and what never does."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.images.egress import EgressRule, EgressRules, plain_name

RULES = EgressRules.parse(["pypi.org:443", "*.example.com:443", "xn--bcher-kva.example:8443"])

labels = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
names = st.lists(labels, min_size=2, max_size=4).map(".".join)
ports = st.integers(1, 65_535)


@pytest.mark.parametrize(
    ("host", "port", "rule"),
    [
        ("pypi.org", 443, "pypi.org:443"),
        ("PyPI.org", 443, "pypi.org:443"),
        ("pypi.org.", 443, "pypi.org:443"),
        ("a.example.com", 443, "*.example.com:443"),
        ("b.a.example.com.", 443, "*.example.com:443"),
        ("xn--bcher-kva.example", 8443, "xn--bcher-kva.example:8443"),
        ("pypi.org", 80, None),
        ("pypi.org..", 443, None),
        ("files.pypi.org", 443, None),
        ("pypi.org.evil.example", 443, None),
        ("evilpypi.org", 443, None),
        ("example.com", 443, None),
        ("evilexample.com", 443, None),
        (".example.com", 443, None),
        ("a..example.com", 443, None),
        ("*.example.com", 443, None),
        ("bücher.example", 8443, None),
        ("a.example.com\n", 443, None),
        ("a.example.com ", 443, None),
        ("a@example.com", 443, None),
        ("a\x00.example.com", 443, None),
        ("", 443, None),
        ("a." * 200 + "example.com", 443, None),
    ],
)
def test_what_is_allowed_names_its_rule(host: str, port: int, rule: str | None) -> None:
    assert RULES.allows(host, port) == rule


@given(st.ip_addresses())
def test_no_address_ever_matches(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    for spelling in (str(address), f"[{address}]", f"{address}.", hex(int(address)), str(int(address))):
        assert plain_name(spelling) is None


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "0x7f.0x1", "1.0x", "10.0.0.01", "127.0.0.1.", "::1", "[::1]"])
def test_nor_any_other_spelling_of_one(host: str) -> None:
    """Resolvers of many systems read these as addresses."""
    assert plain_name(host) is None


@given(names, ports, st.sampled_from(["{}", "{}.", "{:}"]))
def test_a_name_is_allowed_by_itself_in_any_case(name: str, port: int, form: str) -> None:
    rules = EgressRules((EgressRule(name, port),))
    assert rules.allows(form.format(name), port) == f"{name}:{port}"
    assert rules.allows(name.upper(), port) == f"{name}:{port}"


@given(names, names, ports)
def test_beneath_means_beneath(name: str, below: str, port: int) -> None:
    rules = EgressRules((EgressRule(name, port, beneath=True),))
    assert rules.allows(f"{below}.{name}", port) == f"*.{name}:{port}"
    assert rules.allows(name, port) is None
    assert rules.allows(f"{below}{name}", port) is None


@given(st.text(max_size=300), st.integers())
def test_nothing_is_allowed_without_a_rule(host: str, port: int) -> None:
    assert EgressRules().allows(host, port) is None
    assert not EgressRules()


@given(names, ports, st.booleans())
def test_a_rule_reads_as_it_is_written(name: str, port: int, beneath: bool) -> None:
    rule = EgressRule(name, port, beneath)
    assert EgressRule.parse(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    [
        "pypi.org",
        "pypi.org:",
        "pypi.org:0",
        "pypi.org:0443",
        "pypi.org:65536",
        "pypi.org:https",
        ":443",
        "*:443",
        "*.:443",
        "*.*.example.com:443",
        "a*.example.com:443",
        "localhost:443",
        "*.com:443",
        "127.0.0.1:443",
        "[::1]:443",
        "::1:443",
        "https://pypi.org:443",
        "pypi.org/simple:443",
        "bücher.example:443",
        "a_b.example:443",
        "-a.example:443",
    ],
)
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"NAME:PORT|host name|the port"):
        EgressRule.parse(text)


def test_a_rule_may_be_written_in_capitals() -> None:
    assert str(EgressRule.parse("PyPI.org.:443")) == "pypi.org:443"
