"""Three servers, each in a network of its own, so that one of them can be cut off from everybody else.

A stopped process is not a cut wire: its sockets stay open and its kernel goes on to acknowledge. Here every server has
a network namespace with one cable to a switch (a bridge in a namespace of its own, where no firewall of the host
applies), and pulling the cable is `ip link set down` at the switch.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.conformance.broker_bench import NatsCluster, NatsServer
from tests.conftest import unavailable

CLUSTER_PORT = 6222
"""Nobody else is in these networks."""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=240)


class Switch:
    """The networks, and the cables between them. Nothing of it is left after `close`."""

    def __init__(self) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            unavailable("network namespaces need root and iproute2")
        self._name = f"fh{secrets.token_hex(3)}"
        self._net = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(250)}"
        self._spaces: list[str] = []
        self._add(self._name)
        self._inside(self._name, "link", "add", "switch", "type", "bridge")
        self._inside(self._name, "link", "set", "switch", "up")

    def _add(self, space: str) -> None:
        _ip("netns", "add", space)
        self._spaces.append(space)
        self._inside(space, "link", "set", "lo", "up")

    def _inside(self, space: str, *words: str) -> None:
        _ip("netns", "exec", space, "ip", *words)

    def _cable(self, port: str, other_end: str) -> None:
        _ip("link", "add", other_end, "type", "veth", "peer", "name", port, "netns", self._name)
        self._inside(self._name, "link", "set", port, "master", "switch", "up")

    def plug_host(self) -> None:
        cable = f"{self._name}h"
        self._cable("host", cable)
        _ip("addr", "add", f"{self._net}.254/24", "dev", cable)
        _ip("link", "set", cable, "up")

    def plug(self, number: int) -> tuple[str, str]:
        """A new network: its name and the address in it."""
        space, cable, address = f"{self._name}n{number}", f"{self._name}c{number}", f"{self._net}.{number + 1}"
        self._add(space)
        self._cable(f"p{number}", cable)
        _ip("link", "set", cable, "netns", space)
        self._inside(space, "addr", "add", f"{address}/24", "dev", cable)
        self._inside(space, "link", "set", cable, "up")
        return space, address

    def cut(self, number: int) -> None:
        self._inside(self._name, "link", "set", f"p{number}", "down")

    def mend(self, number: int) -> None:
        self._inside(self._name, "link", "set", f"p{number}", "up")

    def close(self) -> None:
        """Cables go with the networks that they end in."""
        for space in self._spaces:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True, timeout=240)


class NamespacedServer(NatsServer):
    def __init__(self, directory: Path, partitions: int, space: str, address: str, **changes: Any) -> None:
        self.address = address
        self.within = ("ip", "netns", "exec", space)
        super().__init__(directory, partitions, host=address, **changes)


class NamespacedCluster(NatsCluster):
    """As `NatsCluster`, and `cut`/`mend` of one server's cable."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self.switch = Switch()
        try:
            self.switch.plug_host()
            places = [self.switch.plug(number) for number in range(3)]
        except BaseException:
            self.switch.close()
            raise
        routes = tuple(f"nats://{address}:{CLUSTER_PORT}" for _, address in places)
        self.servers = [
            NamespacedServer(
                directory / f"n{number}",
                partitions,
                space,
                address,
                name=f"n{number}",
                cluster_port=CLUSTER_PORT,
                routes=routes,
                sync_always=True,
            )
            for number, (space, address) in enumerate(places)
        ]

    def cut(self, server: NatsServer) -> None:
        self.switch.cut(self.servers.index(server))

    def mend(self, server: NatsServer) -> None:
        self.switch.mend(self.servers.index(server))

    def kill(self) -> None:
        super().kill()
        self.switch.close()
