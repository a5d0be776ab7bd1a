"""Networks that somebody interferes with, that cannot be had, or that somebody left behind."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import NetworkUnavailableError
from fumehood.sandbox.docker import networks as docker_networks
from fumehood.sandbox.docker.network_runtimes import _ask_version
from fumehood.sandbox.docker.plan import LABEL_NETWORK, LABEL_NODE, network_name
from fumehood.sandbox.network import mark, nft
from fumehood.sandbox.network.gvisor import RuntimeFacts, network_trouble
from fumehood.sandbox.network.proxy import Proxy
from fumehood.sandbox.network.ruleset import (
    QUESTIONS_A_SECOND,
    QUESTIONS_AT_ONCE,
    interface_name,
    node_mark,
    ruleset,
    table_name,
)
from fumehood.sandbox.spec import Network
from tests.conftest import unavailable
from tests.integration.network_world import Hood, hood
from tests.waiting import until

NOWHERE = "192.0.2"
"""No upstream is needed here."""


@pytest.fixture
async def world(tmp_path: Path, docker_socket: Path, python_image: str) -> AsyncIterator[Hood]:
    if nft.find_program("nft") is None:
        unavailable("sandbox networks need nftables")
    async with hood("runc", python_image, docker_socket, tmp_path, NOWHERE) as made:
        yield made


def table_of(world: Hood) -> str:
    return table_name(node_mark(world.options.node_id))


async def networks_of(world: Hood) -> list[dict[str, Any]]:
    return await world.driver._engine.networks({LABEL_NODE: world.options.node_id})


async def eventually_shown(table: str) -> str:
    return await until(lambda: nft.shown(table))


async def test_a_firewall_that_somebody_flushed_comes_back(world: Hood, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself within seconds, and before another sandbox is made in any case."""
    monkeypatch.setattr(docker_networks, "GUARD_SECONDS", 0.1)
    async with world.sandbox(Network.RESTRICTED):
        before = await nft.shown(table_of(world))
        await nft.delete(table_of(world))
        assert await eventually_shown(table_of(world)) == before


async def test_no_sandbox_is_made_while_the_firewall_is_not_in_force(world: Hood) -> None:
    async with world.sandbox(Network.RESTRICTED):
        before = await nft.shown(table_of(world))
        await nft.apply(f"flush chain inet {table_of(world)} to_node\n")
        async with world.sandbox(Network.RESTRICTED):
            assert await nft.shown(table_of(world)) == before


async def test_traffic_does_not_look_like_somebodys_change(world: Hood) -> None:
    """The firewall counts who comes how often, which must not make it be set anew."""
    async with world.sandbox(Network.DNS_ONLY) as handle:
        before = await nft.shown(table_of(world))
        await world.attempts(handle, {"a": ["tcp", await world.gateway(handle), 53]})
        listed = json.loads(await nft._nft("-j", "list", "set", "inet", table_of(world), "calling"))
        assert any("elem" in entry.get("set", {}) for entry in listed["nftables"])
        assert await nft.shown(table_of(world)) == before


async def test_one_sandbox_cannot_keep_the_node_busy(world: Hood) -> None:
    """What it sends beyond a rate never arrives; another sandbox's does."""
    async with world.sandbox(Network.DNS_ONLY) as noisy, world.sandbox(Network.DNS_ONLY) as quiet:
        gateway = await world.gateway(noisy)
        await world.driver._networks._served[Network.DNS_ONLY].service.close()
        await asyncio.sleep(0)  # the loop lets go of the address in its next turn
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as node:
            node.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 * 1024 * 1024)
            node.bind((gateway, 53))
            node.setblocking(False)
            began = time.monotonic()
            found = await world.attempts(noisy, {"a": ["flood", gateway, 53, 10_000]})
            seconds = time.monotonic() - began
            await world.attempts(quiet, {"a": ["flood", gateway, 53, 1]})
            senders = collections.Counter(received(node))
    assert found == {"a": "10000"}
    (least, most) = sorted(senders.values())
    assert least == 1
    assert QUESTIONS_AT_ONCE // 2 <= most <= QUESTIONS_AT_ONCE + QUESTIONS_A_SECOND * (seconds + 1)
    assert most < 9_000


SO_RCVBUFFORCE = 33


def received(node: socket.socket) -> Iterator[str]:
    with contextlib.suppress(BlockingIOError):
        while True:
            yield node.recvfrom(100)[1][0]


async def test_what_the_policy_allows_no_more_is_looked_for(world: Hood, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_networks, "GUARD_SECONDS", 0.1)
    looked = asyncio.Event()
    monkeypatch.setattr(Proxy, "review", lambda _proxy: looked.set())
    async with world.sandbox(Network.RESTRICTED):
        looked.clear()
        async with asyncio.timeout(30):
            await looked.wait()


async def test_a_network_that_somebody_removed_is_made_again(world: Hood) -> None:
    """`docker network prune` takes every network that is not in use at that moment."""
    async with world.sandbox(Network.DNS_ONLY):
        pass
    (found,) = await networks_of(world)
    await world.driver._engine.remove_network(found["Id"])
    async with world.sandbox(Network.DNS_ONLY) as handle:
        isolation = (await world.driver.inspect(handle)).isolation
    assert isolation is not None
    assert isolation.network == "dns-only"


async def test_a_network_of_another_shape_is_not_used(world: Hood) -> None:
    """What bears our name and is open is removed, and made as it should be."""
    name, profile = network_name(world.options.node_id, Network.DNS_ONLY), str(Network.DNS_ONLY)
    labels = {LABEL_NODE: world.options.node_id, LABEL_NETWORK: profile}
    await world.driver._engine.create_network({"Name": name, "Driver": "bridge", "Internal": False, "Labels": labels})
    async with world.sandbox(Network.DNS_ONLY):
        (found,) = await networks_of(world)
    assert found["Internal"]
    assert found["Options"]["com.docker.network.bridge.enable_icc"] == "false"


async def test_ports_of_a_bridge_are_isolated(world: Hood) -> None:
    async with world.sandbox(Network.FULL), world.sandbox(Network.FULL):
        bridge = Path("/sys/class/net") / interface_name(node_mark(world.options.node_id), Network.FULL)
        flags = [flag.read_text().strip() for flag in bridge.glob("brif/*/isolated")]
    assert flags == ["1", "1"]


async def test_without_nft_a_network_is_refused(world: Hood, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nft, "_PLACES", str(tmp_path))
    with pytest.raises(NetworkUnavailableError, match="install nftables"):
        await world.prepare(Network.DNS_ONLY)
    assert await world.driver.list({}) == []
    assert await networks_of(world) == []
    async with world.sandbox(Network.NONE):
        pass  # needs none of it


async def test_without_the_right_to_set_it_a_network_is_refused(
    world: Hood, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = nft.find_program("nft")
    held_back = tmp_path / "nft"
    held_back.write_text(f'#!/bin/sh\nexec setpriv --bounding-set=-net_admin --inh-caps=-net_admin {real} "$@"\n')
    held_back.chmod(0o755)
    monkeypatch.setattr(nft, "_PLACES", f"{tmp_path}:{nft._PLACES}")
    with pytest.raises(NetworkUnavailableError, match="CAP_NET_ADMIN"):
        await world.prepare(Network.FULL)
    assert await networks_of(world) == []
    found = {one.name: one.networks for one in (await world.driver.capabilities()).runtimes}
    assert found["runc"]["none"] == ""
    assert "CAP_NET_ADMIN" in found["runc"]["full"]


async def test_two_processes_of_one_node_do_not_share_networks(world: Hood) -> None:
    sign = mark.take(node_mark(world.options.node_id))
    assert sign is not None
    with sign, pytest.raises(NetworkUnavailableError, match="another process"):
        await world.prepare(Network.DNS_ONLY)


async def test_what_a_dead_node_left_is_removed(world: Hood) -> None:
    """Its networks and its firewall, once nothing lives in them; a living node's stay."""
    dead, living = f"dead-{uuid.uuid4().hex}", f"living-{uuid.uuid4().hex}"
    engine = world.driver._engine
    for node in (dead, living):
        await engine.create_network(
            {
                "Name": network_name(node, Network.FULL),
                "Driver": "bridge",
                "Labels": {LABEL_NODE: node, LABEL_NETWORK: "full"},
            }
        )
        await nft.apply(ruleset(node_mark(node), ()))
    sign = mark.take(node_mark(living))
    assert sign is not None
    with sign:
        await world.driver.open()
        assert await engine.networks({LABEL_NODE: dead}) == []
        assert await nft.shown(table_name(node_mark(dead))) == ""
        (kept,) = await engine.networks({LABEL_NODE: living})
        assert await nft.shown(table_name(node_mark(living))) != ""
        await engine.remove_network(kept["Id"])
        await nft.delete(table_name(node_mark(living)))


async def test_a_node_that_comes_back_takes_its_networks_up_again(world: Hood) -> None:
    """The same network, and so the same addresses."""
    async with world.sandbox(Network.DNS_ONLY) as handle:
        (before,) = await networks_of(world)
        await world.restart()
        (after,) = await networks_of(world)
        assert after["Id"] == before["Id"]
        traffic = world.driver.traffic(handle)
        assert traffic is not None
        assert traffic["profile"] == "dns-only"
        await world.driver.destroy(handle)


async def test_which_networks_there_are_is_reported_for_each_runtime(world: Hood) -> None:
    found = {one.name: dict(one.networks) for one in (await world.driver.capabilities()).runtimes}
    every = {"none", "dns-only", "restricted", "full"}
    assert found["runc"] == dict.fromkeys(every, "")
    assert found["runsc"]["none"] == ""
    assert "--network=none" in found["runsc"]["full"]
    assert found["runsc-net"] == dict.fromkeys(every, "")


async def test_on_an_old_gvisor_every_network_is_refused(world: Hood, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own gVisor is of 2022; were it the engine's only one, there would be nothing but `deny-all`."""
    old = "/usr/bin/runsc"
    version = await _ask_version(old)
    if "2022" not in version:
        unavailable(f"{old} is not the gVisor of 2022")
    assert network_trouble(RuntimeFacts("runsc", ("--network=sandbox",), version)) is not None
    engine = world.driver._engine
    real = engine.info

    async def info() -> dict[str, Any]:
        runtimes = {"runc": {"path": "runc"}, "runsc": {"path": old, "runtimeArgs": ["--network=sandbox"]}}
        return {**await real(), "Runtimes": runtimes}

    monkeypatch.setattr(engine, "info", info)
    world.runtime = "runsc"
    for network in (Network.DNS_ONLY, Network.RESTRICTED, Network.FULL):
        with pytest.raises(NetworkUnavailableError, match=r"gVisor of 2022.*deny-all"):
            await world.prepare(network)
    assert await world.driver.list({}) == []
    async with world.sandbox(Network.NONE) as handle:
        isolation = (await world.driver.inspect(handle)).isolation
    assert isolation is not None
    assert isolation.network == "none"
