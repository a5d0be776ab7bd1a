"""Network profiles, tried from inside of sandboxes: what must pass passes, and everything else is dropped."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fumehood.sandbox.docker import DockerDriver
from fumehood.sandbox.spec import Network
from tests.integration.network_world import Hood, HostService, Outside, hood, outside

DROPPED = {"TimeoutError", "OSError"}
"""Nothing came back; `OSError`: there is not even a way to it (no route, no IPv6)."""


@pytest.fixture(scope="module")
def beyond(services: dict[str, str]) -> Iterator[Outside]:
    folder = Path(services["FUMEHOOD_TEST_REGISTRY_CA"]).parent
    with outside(folder / "server.pem", folder / "server.key") as found:
        yield found


@pytest.fixture(scope="module")
def net(beyond: Outside) -> str:
    return beyond.net


@pytest.fixture(scope="module")
def host() -> Iterator[HostService]:
    with HostService().listening() as service:
        yield service


@pytest.fixture(params=["runc", pytest.param("runsc", marks=pytest.mark.gvisor)])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, docker_socket: Path, python_image: str, net: str
) -> AsyncIterator[Hood]:
    async with hood(request.param, python_image, docker_socket, tmp_path, net) as made:
        yield made


def host_addresses(net: str) -> list[str]:
    """Addresses of the host's own, one of them public."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.254", 9))
        return [one.getsockname()[0], f"{net}.1"]


def unwelcome(world: Hood, beyond: Outside, gateway: str, neighbour: str, port: int) -> dict[str, list[object]]:
    """What no profile may do, whatever else it may."""
    attempts: dict[str, list[object]] = {
        "raw": ["raw", socket.AF_INET, socket.IPPROTO_TCP],
        "raw icmp": ["raw", socket.AF_INET, socket.IPPROTO_ICMP],
        "raw icmp6": ["raw", socket.AF_INET6, socket.IPPROTO_ICMPV6],
        "packet": ["raw", socket.AF_PACKET, 0],
        "metadata": ["tcp", "169.254.169.254", 80],
        "metadata by device": ["on_device", "169.254.169.254", 80],
        "private": ["tcp", "10.255.255.53", 53],
        "gateway icmp": ["icmp", gateway],
        "neighbour tcp": ["tcp", neighbour, 9999],
        "neighbour udp": ["echo_udp", neighbour, 9999],
        "neighbour icmp": ["icmp", neighbour],
        "neighbour by device": ["on_device", neighbour, 9999],
        "broadcast": ["broadcast", port],
        "all nodes": ["icmp6", "ff02::1%eth0"],
        "ipv6": ["tcp6", "2600::1", 80],
        "other dns": ["no_dns", "10.255.255.53", "allowed.test"],
    }
    for address in beyond.inside:
        attempts[f"{address} http"] = ["tcp", address, 80]
        attempts[f"{address} http by device"] = ["on_device", address, 80]
    for address in (gateway, *host_addresses(world.net)):
        attempts[f"{address} tcp"] = ["tcp", address, port]
        attempts[f"{address} udp"] = ["echo_udp", address, port]
        attempts[f"{address} by device"] = ["on_device", address, port]
    return attempts


def outward(net: str) -> dict[str, list[object]]:
    """What only `full` may do."""
    return {
        "outside tcp": ["tcp", f"{net}.2", 7777],
        "outside udp": ["echo_udp", f"{net}.2", 7777],
        "outside icmp": ["icmp", f"{net}.2"],
        "outside by device": ["on_device", f"{net}.2", 7777],
        "outside dns": ["no_dns", f"{net}.2", "allowed.test"],
        "outside dns tcp": ["no_dns", f"{net}.3", "allowed.test", True],
        "outside http": ["tcp", f"{net}.2", 80],
    }


def check_refused(found: dict[str, str], attempts: dict[str, list[object]]) -> None:
    got = {name: found[name] for name in attempts}
    for name in ("raw", "raw icmp", "raw icmp6", "packet"):
        assert got.pop(name, "PermissionError") == "PermissionError"
    assert {name: result for name, result in got.items() if result not in DROPPED} == {}


async def test_names_and_nothing_else(world: Hood, beyond: Outside, host: HostService) -> None:
    """`dns-only`: the node's resolver answers over UDP and TCP; all other traffic is dropped outside of the sandbox."""
    async with world.sandbox(Network.DNS_ONLY) as neighbour, world.sandbox(Network.DNS_ONLY) as handle:
        gateway = await world.gateway(handle)
        there = (await world.driver.inspect(neighbour)).isolation
        assert there is not None
        bad = {**unwelcome(world, beyond, gateway, there.network_address, host.port), **outward(world.net)}
        bad["gateway proxy"] = ["tcp", gateway, 3128]
        good: dict[str, list[object]] = {
            "udp": ["dns", gateway, "allowed.test"],
            "tcp": ["dns", gateway, "allowed.test", 1, True],
            "library": ["lookup", "allowed.test"],
            "nobody": ["dns", gateway, "nobody.test"],
            "large udp": ["dns", gateway, "large.test", 16],
            "large tcp": ["dns", gateway, "large.test", 16, True],
            "private": ["dns", gateway, "private.test"],
            "mixed": ["dns", gateway, "mixed.test"],
            "meta": ["dns", gateway, "meta.test"],
            "hidden six": ["dns", gateway, "hidden.test", 28],
            "any": ["dns", gateway, "allowed.test", 255],
        }
        found = await world.attempts(handle, {**{f"good {k}": v for k, v in good.items()}, **bad})
        traffic = world.driver.traffic(handle)
    here = f"{world.net}.2"
    assert {name: found[f"good {name}"] for name in good} == {
        "udp": f"0 {here}",
        "tcp": f"0 {here}",
        "library": here,
        "nobody": "0",
        "large udp": "0 T",
        "large tcp": "0" + " 201 bytes" * 20,
        "private": "5",
        "mixed": "5",
        "meta": "5",
        "hidden six": "5",
        "any": "5",
    }
    check_refused(found, bad)
    assert host.visitors == []
    assert traffic is not None
    assert traffic["profile"] == "dns-only"
    assert isinstance(traffic["denied"], int)
    assert traffic["denied"] >= 5
    assert "private.test" in str(traffic["denials"])


async def test_a_name_that_turns_private_is_not_passed_on(world: Hood) -> None:
    """Rebinding: the first answer is public, the next one is the host's own loopback."""
    async with world.sandbox(Network.DNS_ONLY) as handle:
        gateway = await world.gateway(handle)
        asking: dict[str, list[object]] = {"a": ["dns", gateway, f"{world.runtime}-dns.rebind.test"]}
        first = await world.attempts(handle, asking, command_id=1)
        second = await world.attempts(handle, asking, command_id=2)
    assert first == {"a": f"0 {world.net}.2"}
    assert second == {"a": "5"}


async def test_allowed_names_through_the_proxy_and_nothing_else(
    world: Hood, beyond: Outside, host: HostService
) -> None:
    """`restricted`: HTTP and CONNECT to what the operator allows; no names, no addresses, no other way."""
    async with world.sandbox(Network.RESTRICTED) as neighbour, world.sandbox(Network.RESTRICTED) as handle:
        gateway = await world.gateway(handle)
        there = (await world.driver.inspect(neighbour)).isolation
        assert there is not None
        bad = {**unwelcome(world, beyond, gateway, there.network_address, host.port), **outward(world.net)}
        bad["gateway dns"] = ["no_dns", gateway, "allowed.test"]
        bad["gateway dns tcp"] = ["no_dns", gateway, "allowed.test", True]
        good: dict[str, list[object]] = {
            "http": ["fetch", "http://allowed.test/a?b=c"],
            "http port": ["fetch", "http://allowed.test:80/"],
            "beneath": ["fetch", "http://www.beneath.test/"],
            "post": ["post", "http://allowed.test/", 300_000],
            "https": ["fetch", "https://allowed.test/x"],
            "connect": ["tls", "allowed.test", 443, "allowed.test"],
            "library": ["lookup", "allowed.test"],
        }
        no: dict[str, list[object]] = {
            "other name": ["ask", "GET", "http://other.test/"],
            "not beneath": ["ask", "GET", "http://beneath.test/"],
            "other port": ["ask", "GET", "http://allowed.test:7777/"],
            "connect other port": ["ask", "CONNECT", "allowed.test:7777"],
            "connect plain": ["ask", "CONNECT", "allowed.test:80"],
            "connect other name": ["ask", "CONNECT", "other.test:443"],
            "literal": ["ask", "GET", f"http://{world.net}.2/"],
            "connect literal": ["ask", "CONNECT", f"{world.net}.2:443"],
            "connect literal six": ["ask", "CONNECT", "[::1]:443"],
            "metadata": ["ask", "GET", "http://169.254.169.254/latest/meta-data"],
            "number": ["ask", "GET", "http://2130706433/"],
            "private": ["ask", "GET", "http://private.test/"],
            "mixed": ["ask", "GET", "http://mixed.test/"],
            "meta": ["ask", "GET", "http://meta.test/"],
            "loop": ["ask", "GET", "http://loop.test/"],
            "hidden six": ["ask", "GET", "http://hidden.test/"],
            "metadata six": ["ask", "GET", "http://six.test/"],
            "origin form": ["ask", "GET", "/"],
            "user info": ["ask", "GET", "http://allowed.test@other.test/"],
        }
        wrong: dict[str, list[object]] = {
            "sni other": ["tls", "allowed.test", 443, "other.test"],
            "sni none": ["tls", "allowed.test", 443, None],
            "no tls": ["tls", "allowed.test", 443, "plain"],
        }
        parts = {"good": good, "no": no, "wrong": wrong, "bad": bad}
        everything = {f"{part} {name}": words for part, some in parts.items() for name, words in some.items()}
        found = await world.attempts(handle, everything)
        absent = await world.attempts(handle, {"gone": ["ask", "GET", "http://gone.test/"]}, command_id=2)
        traffic = world.driver.traffic(handle)
        itself = await world.attempts(neighbour, {"a public address of the host": ["ask", "GET", "http://self.test/"]})
        beside = world.driver.traffic(neighbour)
    assert {name: found[f"good {name}"] for name in good} == {
        "http": "200 outside allowed.test /a?b=c",
        "http port": "200 outside allowed.test /",
        "beneath": "200 outside www.beneath.test /",
        "post": "200 got 300000",
        "https": "200 outside allowed.test /x",
        "connect": "outside allowed.test /x",
        "library": "gaierror",
    }
    assert {name: found[f"no {name}"] for name in no} == dict.fromkeys(no, "403")
    broken = {"ConnectionResetError", "SSLEOFError", "SSLZeroReturnError", "closed", "BrokenPipeError"}
    assert {found[f"wrong {name}"] for name in wrong} <= broken
    check_refused({name: found[f"bad {name}"] for name in bad}, bad)
    assert absent == {"gone": "502"}
    assert host.visitors == []
    assert traffic is not None
    assert traffic["denied"] == len(no) + len(wrong)
    assert traffic["allowed"] == 6
    denials = traffic["denials"]
    assert isinstance(denials, list)
    assert len(denials) == 20
    assert itself == {"a public address of the host": "403"}
    assert beside is not None
    assert "this machine itself" in str(beside["denials"])


async def test_a_rebinding_name_never_leads_inside(world: Hood, host: HostService) -> None:
    """Each connection is judged by the addresses that it is made to."""
    async with world.sandbox(Network.RESTRICTED) as handle:
        asking: dict[str, list[object]] = {"a": ["ask", "GET", f"http://{world.runtime}-web.rebind.test/"]}
        answers = [await world.attempts(handle, asking, command_id=number) for number in (1, 2)]
    assert answers == [{"a": "200"}, {"a": "403"}]
    assert host.visitors == []


async def test_public_addresses_and_no_others(world: Hood, beyond: Outside, host: HostService) -> None:
    """`full`: everything public, by address and by name; the host, its neighbours and private addresses never."""
    async with world.sandbox(Network.FULL) as neighbour, world.sandbox(Network.FULL) as handle:
        gateway = await world.gateway(handle)
        there = (await world.driver.inspect(neighbour)).isolation
        assert there is not None
        bad = unwelcome(world, beyond, gateway, there.network_address, host.port)
        good: dict[str, list[object]] = {
            "tcp": ["echo_tcp", f"{world.net}.2", 7777],
            "udp": ["echo_udp", f"{world.net}.2", 7777, 15.0],
            "other dns": ["dns", f"{world.net}.3", "other.test"],
            "own dns": ["dns", gateway, "allowed.test"],
            "own dns private": ["dns", gateway, "private.test"],
            "by name": ["fetch", "http://allowed.test/"],
        }
        found = await world.attempts(handle, {**{f"good {k}": v for k, v in good.items()}, **bad})
    assert {name: found[f"good {name}"] for name in good} == {
        "tcp": "hello",
        "udp": "hello",
        "other dns": f"0 {world.net}.3",
        "own dns": f"0 {world.net}.2",
        "own dns private": "5",
        "by name": "200 outside allowed.test /",
    }
    check_refused(found, bad)
    assert host.visitors == []


def test_what_is_closed_to_sandboxes_is_open_to_others(beyond: Outside, net: str, host: HostService) -> None:
    """Else the tests above would find it closed for another reason."""
    for address in beyond.inside:
        with socket.create_connection((address, 80), 10):
            pass
    (name,) = [word for word in _ip("netns", "list").split() if word.startswith("fho") and _has(word, net)]
    program = f"import socket; socket.create_connection(('{net}.1', {host.port}), 10)"
    subprocess.run(["ip", "netns", "exec", name, "python3", "-c", program], check=True, timeout=240)
    with contextlib.suppress(ValueError):
        host.visitors.remove(f"tcp ::ffff:{net}.2")


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=240).stdout


def _has(name: str, net: str) -> bool:
    return f"{net}.2" in _ip("-n", name, "addr")


async def test_what_was_observed_names_the_network(world: Hood) -> None:
    """The evidence tells the profile, the engine's name of the network and the address, as inspected."""
    async with world.sandbox(Network.DNS_ONLY) as handle:
        isolation = (await world.driver.inspect(handle)).isolation
    assert isolation is not None
    assert isolation.network == "dns-only"
    assert isolation.network_name == f"fumehood-{world.options.node_id}-dns-only"
    assert isolation.network_address.count(".") == 3
    assert isolation.capabilities == ("KILL", "SETGID", "SETPCAP", "SETUID") or "NET_RAW" not in isolation.capabilities
    assert isolation.runtime.startswith(world.runtime)


async def test_a_restart_of_the_node_leaves_networks_alive(world: Hood) -> None:
    """The resolver and the proxy come back on the same address, and know the sandboxes that went on."""
    async with contextlib.AsyncExitStack() as stack:
        named = await stack.enter_async_context(world.sandbox(Network.DNS_ONLY))
        proxied = await stack.enter_async_context(world.sandbox(Network.RESTRICTED))
        gateway = await world.gateway(named)
        await world.restart()
        assert (await world.attempts(named, {"a": ["dns", gateway, "allowed.test"]}, command_id=7))["a"].startswith(
            "0 "
        )
        answer = await world.attempts(proxied, {"a": ["fetch", "http://allowed.test/"]}, command_id=7)
        assert answer["a"].startswith("200 ")
        stack.pop_all()
        for handle in (named, proxied):
            await world.driver.destroy(handle)


async def test_the_engines_own_resolver_tells_nothing(world: Hood) -> None:
    """It listens inside of sandboxes on runc (127.0.0.11), asks from outside of them, and knows their neighbours."""
    async with world.sandbox(Network.RESTRICTED) as handle, world.sandbox(Network.RESTRICTED) as neighbour:
        there = (await world.driver.inspect(neighbour)).isolation
        assert there is not None
        backwards = ".".join(reversed(there.network_address.split("."))) + ".in-addr.arpa"
        asking: dict[str, list[object]] = {
            "name": ["no_dns", "127.0.0.11", "allowed.test"],
            "tcp": ["no_dns", "127.0.0.11", "allowed.test", True],
            "neighbour": ["no_dns", "127.0.0.11", f"fumehood-{neighbour.sandbox_id}"],
            "backwards": ["dns", "127.0.0.11", backwards, 12, False, 2.0],
        }
        found = await world.attempts(handle, asking)
    assert set(found.values()) <= {"TimeoutError", "ConnectionRefusedError", "PermissionError"}


async def test_networks_that_nobody_uses_are_removed(world: Hood) -> None:
    """A node that ends leaves neither network nor firewall, unless sandboxes still need them."""
    async with world.sandbox(Network.DNS_ONLY):
        pass
    mark = world.driver._networks._mark
    assert f"fumehood_{mark}" in _nft_tables()
    await world.driver.close()
    assert f"fumehood_{mark}" not in _nft_tables()
    world.driver = DockerDriver(world.options)
    assert await world.driver._engine.networks({"fumehood.node": world.options.node_id}) == []


def _nft_tables() -> str:
    return subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True, timeout=240).stdout
