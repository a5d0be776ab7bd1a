"""Sandboxes with networks, and something to reach or not to reach: an outside with public addresses, and a host."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fumehood.images import Admission, AdmittedImage, DevelopmentPolicy
from fumehood.images.egress import EgressRules
from fumehood.images.registry import RegistryClient
from fumehood.sandbox.capture import STDERR, STDOUT, Capture
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.spec import Command, Limits, Network, SandboxSpec
from tests.conftest import unavailable

HERE = Path(__file__).parent
PROBE = (HERE / "network_probe.py").read_text()
ALLOWED = (
    "allowed.test:80",
    "allowed.test:443",
    "*.beneath.test:80",
    "private.test:80",
    "mixed.test:80",
    "meta.test:80",
    "loop.test:80",
    "*.rebind.test:80",
    "hidden.test:80",
    "six.test:80",
    "gone.test:80",
    "self.test:80",
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=240)


@dataclass(frozen=True)
class Outside:
    """Where to find it."""

    net: str
    """The first three numbers of its public addresses."""
    inside: tuple[str, ...]
    """Addresses that are not public, and that serve the host on port 80."""


@contextlib.contextmanager
def outside(certificate: Path, key: Path) -> Iterator[Outside]:
    """A network beside the host that has public addresses, and some that the host can reach and nobody else may."""
    if os.geteuid() != 0 or not all(shutil.which(program) for program in ("ip", "nft")):
        unavailable("sandbox networks need root, iproute2 and nftables")
    name = f"fho{secrets.token_hex(3)}"
    net = f"{45 + secrets.randbelow(4)}.{secrets.randbelow(256)}.{secrets.randbelow(256)}"
    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "out", "netns", name)
        ip("addr", "add", f"{net}.1/24", "dev", name)
        ip("link", "set", name, "up")
        for last in (2, 3):
            ip("-n", name, "addr", "add", f"{net}.{last}/24", "dev", "out")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", "out", "up")
        two = f"{secrets.randbelow(250) + 2}.{secrets.randbelow(250) + 2}"
        inside = (f"10.254.{two}", f"169.254.{two}", f"100.127.{two}")
        for address in inside:
            ip("-n", name, "addr", "add", f"{address}/32", "dev", "out")
            ip("route", "add", f"{address}/32", "via", f"{net}.2", "dev", name)
        command = ["ip", "netns", "exec", name, sys.executable, str(HERE / "network_outside.py")]
        with subprocess.Popen(
            [*command, net, str(certificate), str(key), *inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            try:
                yield Outside(net, inside)
            finally:
                process.terminate()
    finally:
        ip("netns", "delete", name)


@dataclass
class HostService:
    """A program of the host's that listens everywhere, and remembers who came."""

    port: int = 0
    visitors: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[HostService]:
        with socket.socket(socket.AF_INET6) as tcp, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp:
            for one in (tcp, udp):
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            tcp.bind(("::", 0))
            self.port = tcp.getsockname()[1]
            udp.bind(("::", self.port))
            tcp.listen()
            threads = [
                threading.Thread(target=self._accept, args=(tcp,)),
                threading.Thread(target=self._take, args=(udp,)),
            ]
            for thread in threads:
                thread.start()
            try:
                yield self
            finally:
                with socket.create_connection(("127.0.0.1", self.port)):
                    pass
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bye:
                    bye.sendto(b"bye", ("127.0.0.1", self.port))
                for thread in threads:
                    thread.join()

    def _accept(self, tcp: socket.socket) -> None:
        while True:
            one, who = tcp.accept()
            one.close()
            if who[0] == "::ffff:127.0.0.1":
                return
            self.visitors.append(f"tcp {who[0]}")

    def _take(self, udp: socket.socket) -> None:
        while True:
            data, who = udp.recvfrom(100)
            if data == b"bye":
                return
            self.visitors.append(f"udp {who[0]}")
            udp.sendto(data, who)


@dataclass
class Hood:
    """A driver on one runtime, and the world around it."""

    driver: DockerDriver
    options: DockerOptions
    image: AdmittedImage
    runtime: str
    net: str

    async def prepare(self, network: Network) -> Handle:
        limits = Limits(memory_bytes=256 * 1024 * 1024)
        spec = SandboxSpec(uuid.uuid4().hex, self.image, network=network, runtime=self.runtime, limits=limits)
        return await self.driver.prepare(spec)

    @contextlib.asynccontextmanager
    async def sandbox(self, network: Network) -> AsyncIterator[Handle]:
        handle = await self.prepare(network)
        try:
            await self.driver.start(handle)
            yield handle
        finally:
            await self.driver.destroy(handle)

    async def restart(self) -> None:
        """The node's process goes away, and another one with the same id comes."""
        await self.driver.close()
        self.driver = DockerDriver(self.options)
        await self.driver.open()

    async def attempts(
        self, handle: Handle, attempts: dict[str, list[object]], *, command_id: int = 1
    ) -> dict[str, str]:
        """What came of each attempt inside of a sandbox."""
        return await probe(self.driver, handle, attempts, command_id=command_id)

    async def gateway(self, handle: Handle) -> str:
        inspected = await self.driver._engine.inspect(handle.engine_id)
        (endpoint,) = inspected["NetworkSettings"]["Networks"].values()
        return str(endpoint["Gateway"])


async def probe(
    driver: DockerDriver, handle: Handle, attempts: dict[str, list[object]], *, command_id: int = 1
) -> dict[str, str]:
    capture = Capture(256 * 1024)
    command = Command(("python3", "-c", PROBE, json.dumps(attempts)), timeout_ms=90_000)
    outcome = await driver.run(handle, command, capture, command_id=command_id)
    assert outcome.exit_code == 0, capture.kept(STDERR).decode()
    found: dict[str, str] = json.loads(capture.kept(STDOUT))
    return found


@contextlib.asynccontextmanager
async def hood(runtime: str, image: str, socket_path: Path, state: Path, net: str) -> AsyncIterator[Hood]:
    rules = EgressRules.parse(ALLOWED)
    options = DockerOptions(
        node_id=f"net-{uuid.uuid4().hex}",
        state_dir=state,
        socket=socket_path,
        egress=lambda: rules,
        dns_upstreams=(f"{net}.2",),
    )
    async with RegistryClient() as registry:
        admitted = await Admission(DevelopmentPolicy(), registry).admit(image)
    made = Hood(DockerDriver(options), options, admitted, runtime, net)
    try:
        yield made
    finally:
        for handle in await made.driver.list({}):
            await made.driver.destroy(handle)
        await made.driver.close()
