"""How something may be run: as whom, with which network, how large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import PolicyDeniedError
from fumehood.images import DevelopmentPolicy, EgressRules, RunRules, RunWish
from fumehood.images.run_rules import Maxima
from fumehood.wire.sandbox import NetworkProfile
from tests.unit.policy_world import policy

ALL = frozenset(NetworkProfile)
NAMES = EgressRules.parse(["pypi.org:443"])


def denied(rules: RunRules, wish: RunWish) -> PolicyDeniedError:
    with pytest.raises(PolicyDeniedError) as caught:
        rules.check(wish, "p")
    assert "policy p" in caught.value.detail
    return caught.value


def test_the_least_is_allowed_without_a_word() -> None:
    RunRules().check(RunWish(), "p")
    RunRules().check(RunWish(NetworkProfile.LOCALHOST), "p")
    RunRules().check(RunWish(cpu_millis=10**9, memory_mib=10**9, timeout_seconds=10**9), "p")


def test_another_user() -> None:
    error = denied(RunRules(), RunWish(user="image"))
    assert error.reason == "user_not_allowed"
    assert "allowed: sandbox" in error.detail
    RunRules(users=frozenset({"sandbox", "image"})).check(RunWish(user="image"), "p")


@pytest.mark.parametrize("profile", list(NetworkProfile))
def test_a_network_is_allowed_by_its_name_alone(profile: NetworkProfile) -> None:
    RunRules(networks=frozenset({profile}), egress=NAMES).check(RunWish(profile), "p")
    error = denied(RunRules(networks=ALL - {profile}, egress=NAMES), RunWish(profile))
    assert error.reason == "network_not_allowed"
    assert f"`{profile}`" in error.detail


def test_restricted_needs_names() -> None:
    error = denied(RunRules(networks=ALL), RunWish(NetworkProfile.RESTRICTED))
    assert error.reason == "network_not_allowed"
    assert "egress.allow" in error.detail


@pytest.mark.parametrize("name", ["cpu_millis", "memory_mib", "timeout_seconds"])
@given(most=st.integers(1, 10**9), asked=st.integers(1, 10**9))
def test_a_limit_is_a_most(name: str, most: int, asked: int) -> None:
    rules, wish = RunRules(maxima=Maxima(**{name: most})), replace(RunWish(), **{name: asked})  # type: ignore[arg-type]
    if asked <= most:
        rules.check(wish, "p")
    else:
        error = denied(rules, wish)
        assert error.reason == "limits_not_allowed"
        assert error.detail.startswith(name)


def test_a_fraction_above_is_above() -> None:
    assert denied(RunRules(maxima=Maxima(timeout_seconds=10)), RunWish(timeout_seconds=10.001)).detail.startswith(
        "timeout_seconds 10.001 is above"
    )


def test_a_policy_of_a_file_says_so_by_its_name(tmp_path: Path) -> None:
    made = policy(tmp_path)
    made.permits(RunWish(NetworkProfile.RESTRICTED, 4000, 8192, 3600))
    for wish, reason in (
        (RunWish(user="image"), "user_not_allowed"),
        (RunWish(NetworkProfile.FULL), "network_not_allowed"),
        (RunWish(NetworkProfile.LOCALHOST), "network_not_allowed"),
        (RunWish(cpu_millis=4001), "limits_not_allowed"),
    ):
        with pytest.raises(PolicyDeniedError, match="production") as caught:
            made.permits(wish)
        assert caught.value.reason == reason


@pytest.mark.parametrize("user", ["sandbox", "image"])
@pytest.mark.parametrize("profile", ["deny-all", "dns-only", "localhost"])
def test_development_permits(user: str, profile: str) -> None:
    DevelopmentPolicy().permits(RunWish(NetworkProfile(profile), 10**6, 10**6, 10**6, user))  # type: ignore[arg-type]


def test_development_permits_restricted_with_names_only_and_full_never() -> None:
    for made, profile in (
        (DevelopmentPolicy(), NetworkProfile.RESTRICTED),
        (DevelopmentPolicy(), NetworkProfile.FULL),
        (DevelopmentPolicy(egress=NAMES), NetworkProfile.FULL),
    ):
        with pytest.raises(PolicyDeniedError, match="development") as caught:
            made.permits(RunWish(profile))
        assert caught.value.reason == "network_not_allowed"
    DevelopmentPolicy(egress=NAMES).permits(RunWish(NetworkProfile.RESTRICTED))
