"""How something may be run, whatever the image: as which user, with which network, how large. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, final

from fumehood.errors import PolicyDeniedError
from fumehood.images.egress import EgressRules
from fumehood.wire.sandbox import NetworkProfile

RunUser = Literal["sandbox", "image"]
"""`sandbox`: an unprivileged user of ours. `image`: whom the image names, root included."""

USER_NOT_ALLOWED: Final = "user_not_allowed"
NETWORK_NOT_ALLOWED: Final = "network_not_allowed"
LIMITS_NOT_ALLOWED: Final = "limits_not_allowed"


@final
@dataclass(frozen=True, slots=True)
class RunWish:
    """What somebody asks for, and gets if it is allowed: whoever runs it fills in his own limits where none was asked
    for. A limit of `None` is compared with nothing."""

    network: NetworkProfile = NetworkProfile.DENY_ALL
    cpu_millis: int | None = None
    memory_mib: int | None = None
    timeout_seconds: float | None = None
    user: RunUser = "sandbox"


@final
@dataclass(frozen=True, slots=True)
class Maxima:
    """What nothing may pass. `None`: the policy sets no bound of its own."""

    cpu_millis: int | None = None
    memory_mib: int | None = None
    timeout_seconds: int | None = None


@final
@dataclass(frozen=True, slots=True)
class RunRules:
    """What is allowed. Without a word it is the least: our own user, and no network."""

    users: frozenset[RunUser] = frozenset({"sandbox"})
    networks: frozenset[NetworkProfile] = frozenset({NetworkProfile.DENY_ALL, NetworkProfile.LOCALHOST})
    egress: EgressRules = field(default_factory=EgressRules)
    """Names for `restricted`, which is refused without any."""
    maxima: Maxima = field(default_factory=Maxima)

    def check(self, wish: RunWish, policy: str) -> None:
        """`PolicyDeniedError` at the first "no", with what would be allowed."""
        self._check_user(wish, policy)
        self._check_network(wish, policy)
        self._check_limits(wish, policy)

    def _check_user(self, wish: RunWish, policy: str) -> None:
        if wish.user not in self.users:
            allowed = " and ".join(sorted(self.users))
            raise PolicyDeniedError(
                f"the policy {policy} does not let commands run as the user `{wish.user}`; allowed: {allowed}",
                reason=USER_NOT_ALLOWED,
            )

    def _check_network(self, wish: RunWish, policy: str) -> None:
        if wish.network not in self.networks:
            allowed = ", ".join(profile for profile in NetworkProfile if profile in self.networks)
            raise PolicyDeniedError(
                f"the policy {policy} does not allow the network profile `{wish.network}`; allowed: {allowed}",
                reason=NETWORK_NOT_ALLOWED,
            )
        if wish.network is NetworkProfile.RESTRICTED and not self.egress:
            raise PolicyDeniedError(
                f"the policy {policy} names nothing that the network profile `restricted` could lead to: its "
                "egress.allow is empty",
                reason=NETWORK_NOT_ALLOWED,
            )

    def _check_limits(self, wish: RunWish, policy: str) -> None:
        for name, unit in (("cpu_millis", "thousandths of a core"), ("memory_mib", "MiB"), ("timeout_seconds", "s")):
            most, asked = getattr(self.maxima, name), getattr(wish, name)
            if most is not None and asked is not None and asked > most:
                raise PolicyDeniedError(
                    f"{name} {asked:g} is above what the policy {policy} allows: {most} {unit}; whoever asks for none "
                    "gets the node's own, which counts like one that was asked for",
                    reason=LIMITS_NOT_ALLOWED,
                )
