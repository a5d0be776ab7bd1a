"""The engine's side of sandbox networks: one network for each profile and node, made when it is first asked for.

The order is what makes it safe: the firewall with the bridge's name comes first, then the engine's network, then the
firewall again with its addresses, then whoever serves on it; and a sandbox runs nothing before its port is isolated
and its address known. A network outlives its node's process, so that a restart leaves sandboxes alone: the next life
finds it by its label, and serves on the same address again. What a node left that lives no more is removed by the
next node that looks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final

from fumehood.errors import EngineStatusError, NetworkUnavailableError
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.docker.options import DockerOptions
from fumehood.sandbox.docker.plan import LABEL_NETWORK, LABEL_NODE, LABEL_SANDBOX, network_name
from fumehood.sandbox.network import mark, nft, ports
from fumehood.sandbox.network.accounts import Accounts
from fumehood.sandbox.network.attachment import Attachment, proxy_env, resolv_conf_text, resolver_of
from fumehood.sandbox.network.gate import Gate
from fumehood.sandbox.network.proxy import Proxy
from fumehood.sandbox.network.resolver import Resolver
from fumehood.sandbox.network.ruleset import (
    PROFILES,
    TABLE_PREFIX,
    WITHIN_SANDBOX,
    Bridge,
    interface_name,
    node_mark,
    ruleset,
    table_name,
)
from fumehood.sandbox.network.upstream import Upstream
from fumehood.sandbox.spec import Network

GUARD_SECONDS: Final = 5.0
"""How often the firewall is looked at, which others' tools may flush, and what the proxy's rules allow no more."""
_BRIDGE: Final = "com.docker.network.bridge"


@dataclass(frozen=True, slots=True)
class _Served:
    bridge: Bridge
    attachment: Attachment
    service: Proxy | Resolver


class Networks:
    """All networks of one node. Nothing is made, and nothing runs, before the first sandbox asks for one."""

    def __init__(self, engine: Engine, options: DockerOptions) -> None:
        self._engine = engine
        self._options = options
        self._mark = node_mark(options.node_id)
        self._accounts = Accounts()
        self._upstream = Upstream(options.dns_upstreams)
        self._served: dict[Network, _Served] = {}
        self._sign: mark.Sign | None = None
        self._guard: asyncio.Task[None] | None = None
        self._in_force = ""
        self._lock = asyncio.Lock()

    # --- what the driver asks ------------------------------------------------------------------------------

    async def trouble(self) -> str | None:
        """Why there can be no network here at all, as far as can be told without making one."""
        try:
            await nft.check(ruleset(self._mark, ()))
        except NetworkUnavailableError as error:
            return error.detail
        return None

    async def open(self) -> None:
        """Serve again what an earlier life of this node left, and remove what dead nodes left."""
        async with self._lock:
            left = await self._engine.networks({LABEL_NODE: self._options.node_id})
            profiles = [profile for profile in PROFILES if any(_profile_label(net) == profile for net in left)]
            if profiles:
                await self._begin()
            for profile in profiles:
                await self._serve(profile)
            for container in await self._engine.containers({LABEL_NODE: self._options.node_id}) if profiles else ():
                self._remember(container["Labels"], container.get("NetworkSettings") or {})
            await self._sweep()

    async def attachment(self, profile: Network) -> Attachment:
        """For a new sandbox; the network is made if need be. Raises rather than give less than was asked for."""
        async with self._lock:
            await self._begin()
            await self._watch_over()
            await self._forget_removed(profile)
            if profile not in self._served:
                await self._serve(profile)
            return self._served[profile].attachment

    async def join(self, inspected: Mapping[str, Any]) -> None:
        """A sandbox of ours runs: keep it apart from others, and know it by its address."""
        labels = inspected["Config"].get("Labels") or {}
        profile = Network(labels.get(LABEL_NETWORK, Network.NONE))
        if profile is Network.NONE or not (inspected.get("State") or {}).get("Running"):
            return
        await self.attachment(profile)
        ports.isolate(self._served[profile].bridge.interface)
        await nft.apply_within(_namespace(inspected), WITHIN_SANDBOX)
        self._remember(labels, inspected.get("NetworkSettings") or {})
        if self._accounts.of(labels[LABEL_SANDBOX]) is None:
            raise NetworkUnavailableError("the engine gave the sandbox no address in its network")

    def leave(self, sandbox_id: str) -> None:
        self._accounts.leave(sandbox_id)

    def traffic(self, sandbox_id: str) -> dict[str, object] | None:
        account = self._accounts.of(sandbox_id)
        return account.evidence() if account is not None else None

    async def close(self) -> None:
        """Let go. Networks in use stay, with their firewall; others are removed."""
        if self._guard is not None:
            self._guard.cancel()
            await asyncio.gather(self._guard, return_exceptions=True)
            self._guard = None
        async with self._lock:
            for served in self._served.values():
                await served.service.close()
            self._served.clear()
            for account in self._accounts.all():
                self._accounts.leave(account.sandbox_id)
            if self._sign is None:
                return
            try:
                await self._remove_unused()
            finally:
                self._sign.close()
                self._sign = None

    # --- making --------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Show that this node lives, and shut its bridges before there are any."""
        if self._sign is not None:
            return
        sign = mark.take(self._mark)
        if sign is None:
            raise NetworkUnavailableError("another process of this node holds its networks")
        try:
            await self._enforce()
        except BaseException:
            sign.close()
            raise
        self._sign = sign
        self._guard = asyncio.create_task(self._guarding(), name="networks.guard")

    async def _serve(self, profile: Network) -> None:
        found = await self._find(profile) or await self._make(profile)
        bridge = _bridge(found, profile, self._mark)
        if not ports.exists(bridge.interface):
            raise NetworkUnavailableError("the engine's networks are not in the node's own: run both in the same one")
        await self._enforce(bridge)
        service: Proxy | Resolver
        if profile is Network.RESTRICTED:
            service = Proxy(self._accounts, Gate(self._options.egress, self._upstream))
        else:
            service = Resolver(self._accounts, self._upstream)
        await service.start(str(bridge.gateway))
        resolver = resolver_of(profile, bridge.gateway)
        attachment = Attachment(
            profile=profile,
            network=network_name(self._options.node_id, profile),
            resolver=resolver,
            resolv_conf=await asyncio.to_thread(self._write_resolv_conf, profile, resolver),
            env=proxy_env(profile, bridge.gateway),
        )
        self._served[profile] = _Served(bridge, attachment, service)

    async def _forget_removed(self, profile: Network) -> None:
        """Somebody may have removed it behind our back (`docker network prune`)."""
        served = self._served.get(profile)
        if served is not None and not ports.exists(served.bridge.interface):
            del self._served[profile]
            await served.service.close()

    async def _find(self, profile: Network) -> dict[str, Any] | None:
        """The network of an earlier life, if it is what we would make now; if not, and unused, it is removed."""
        try:
            found = await self._engine.network(network_name(self._options.node_id, profile))
        except EngineStatusError as error:
            if error.status == 404:
                return None
            raise
        if _as_made(found, self._body(profile)):
            return found
        if found.get("Containers"):
            raise NetworkUnavailableError(f"the network {found['Name']} is not as this version makes it, and is in use")
        await self._remove(str(found["Id"]))
        return None

    async def _make(self, profile: Network) -> dict[str, Any]:
        try:
            return await self._engine.network(await self._engine.create_network(self._body(profile)))
        except EngineStatusError as error:
            raise NetworkUnavailableError(
                f"the engine made no network for {profile} (status {error.status}): "
                "see whether its address pools are used up (`docker network ls`)"
            ) from error

    def _body(self, profile: Network) -> dict[str, Any]:
        return {
            "Name": network_name(self._options.node_id, profile),
            "CheckDuplicate": True,
            "Driver": "bridge",
            "Internal": profile is not Network.FULL,
            "EnableIPv6": False,
            "Options": {
                f"{_BRIDGE}.name": interface_name(self._mark, profile),
                f"{_BRIDGE}.enable_icc": "false",
            },
            "Labels": {LABEL_NODE: self._options.node_id, LABEL_NETWORK: str(profile)},
        }

    def _write_resolv_conf(self, profile: Network, resolver: str) -> Path:
        folder = self._options.state_dir / "networks"
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path, text = folder / f"{profile}.resolv.conf", resolv_conf_text(resolver)
        if not path.exists() or path.read_text() != text:
            draft = path.with_suffix(".new")
            draft.write_text(text)
            draft.chmod(0o644)
            draft.replace(path)
        return path.absolute()

    def _remember(self, labels: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        profile = Network(labels.get(LABEL_NETWORK, Network.NONE))
        endpoint = (settings.get("Networks") or {}).get(network_name(self._options.node_id, profile)) or {}
        if profile is not Network.NONE and endpoint.get("IPAddress"):
            self._accounts.enter(labels[LABEL_SANDBOX], profile, str(endpoint["IPAddress"]))

    # --- the firewall --------------------------------------------------------------------------------------

    async def _enforce(self, *more: Bridge) -> None:
        bridges = {served.bridge.profile: served.bridge for served in self._served.values()}
        bridges |= {bridge.profile: bridge for bridge in more}
        await nft.apply(ruleset(self._mark, bridges.values()))
        self._in_force = await nft.shown(table_name(self._mark))
        if not self._in_force:
            raise NetworkUnavailableError("the firewall of sandbox networks was set, and is not there")

    async def _watch_over(self) -> None:
        """Whatever others did to the firewall: ours is in force."""
        if await nft.shown(table_name(self._mark)) != self._in_force:
            await self._enforce()

    async def _guarding(self) -> None:
        while True:
            await asyncio.sleep(GUARD_SECONDS)
            async with self._lock:
                for served in self._served.values():
                    if isinstance(served.service, Proxy):
                        served.service.review()
                with contextlib.suppress(NetworkUnavailableError):  # tried again; who asks for a network is told
                    await self._watch_over()

    # --- removing ------------------------------------------------------------------------------------------

    async def _remove_unused(self) -> None:
        left = 0
        for found in await self._engine.networks({LABEL_NODE: self._options.node_id}):
            left += not await self._remove(str(found["Id"]))
        if not left:
            await nft.delete(table_name(self._mark))

    async def _sweep(self) -> None:
        """Networks and tables of nodes that live no more; those that sandboxes still use stay."""
        for found in await self._engine.networks({LABEL_NETWORK: ""}):
            node = (found.get("Labels") or {}).get(LABEL_NODE, "")
            if node != self._options.node_id and not mark.is_alive(node_mark(node)):
                await self._remove(str(found["Id"]))
        used = {node_mark(_node_label(found)) for found in await self._engine.networks({LABEL_NETWORK: ""})}
        with contextlib.suppress(NetworkUnavailableError):  # no firewall here: then none of ours, either
            for table in await nft.tables():
                owner = table.removeprefix(TABLE_PREFIX)
                if owner != table and owner not in used and not mark.is_alive(owner):
                    await nft.delete(table)

    async def _remove(self, network: str) -> bool:
        """Whether it is gone; the engine keeps one that is in use."""
        try:
            await self._engine.remove_network(network)
        except EngineStatusError as error:
            return error.status == 404
        return True


def _namespace(inspected: Mapping[str, Any]) -> Path:
    """A sandbox's own network, by the engine's handle on it; by its process where that is hidden from us."""
    key = Path(str((inspected.get("NetworkSettings") or {}).get("SandboxKey") or "/nowhere"))
    return key if key.exists() else Path(f"/proc/{int(inspected['State']['Pid'])}/ns/net")


def _profile_label(found: Mapping[str, Any]) -> str:
    return str((found.get("Labels") or {}).get(LABEL_NETWORK, ""))


def _node_label(found: Mapping[str, Any]) -> str:
    return str((found.get("Labels") or {}).get(LABEL_NODE, ""))


def _as_made(found: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Is a network all that we would ask for?"""
    same = all(found.get(name) == body[name] for name in ("Driver", "Internal", "EnableIPv6", "Labels"))
    options = found.get("Options") or {}
    return same and all(options.get(name) == value for name, value in body["Options"].items())


def _bridge(found: Mapping[str, Any], profile: Network, node: str) -> Bridge:
    try:
        addresses = found["IPAM"]["Config"][0]
        subnet, gateway = IPv4Network(addresses["Subnet"]), IPv4Address(addresses["Gateway"].partition("/")[0])
    except (KeyError, IndexError, TypeError, ValueError):
        raise NetworkUnavailableError("the engine's network has no address of its own") from None
    return Bridge(profile, interface_name(node, profile), subnet, gateway)
