"""A Docker Engine of the test's own, which may be killed without taking the shared one away from others."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import uuid
from pathlib import Path
from types import TracebackType

from tests.waiting import wait_until

START_SECONDS = 120.0


class PrivateEngine:
    """`dockerd` with its own folders, socket, bridge and containerd; no firewall rules, no shared state. (Without a
    bridge, `dockerd` would delete `docker0`, which is the machine's engine's.)

    containerd is a process beside it, as on machines with an init system: it survives what kills the engine.
    """

    def __init__(self, folder: Path) -> None:
        self._short = Path("/var/tmp") / f"fh-{uuid.uuid4().hex[:8]}"  # the path of a socket has at most 107 characters
        self._bridge = self._short.name
        self._folder = folder
        self.socket = self._short / "d.sock"
        self._containerd: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def _start_containerd(self) -> None:
        self._short.mkdir(mode=0o700)
        address = f"198.18.{secrets.randbelow(256)}.1/24"
        subprocess.run(["ip", "link", "add", self._bridge, "type", "bridge"], check=True)
        subprocess.run(["ip", "address", "add", address, "dev", self._bridge], check=True)
        config = self._short / "containerd.toml"
        config.write_text(
            f'version = 2\nroot = "{self._short}/cd-root"\nstate = "{self._short}/cd-state"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{self._short}/cd.sock"\n'
        )
        with (self._folder / "containerd.log").open("ab") as log:
            command = ["containerd", "--config", str(config), "--log-level", "error"]
            self._containerd = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def start(self) -> None:
        """Start it (again) and wait until it answers."""
        if self._containerd is None:
            self._start_containerd()
        (self._short / "d.pid").unlink(missing_ok=True)
        command = ["dockerd", "--host", f"unix://{self.socket}", "--data-root", str(self._short / "data")]
        command += ["--exec-root", str(self._short / "exec"), "--pidfile", str(self._short / "d.pid")]
        command += ["--containerd", str(self._short / "cd.sock")]
        command += ["--bridge", self._bridge, "--iptables=false", "--ip6tables=false", "--log-level", "error"]
        with (self._folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_until(self._answers, START_SECONDS, what="the private engine did not start")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "dockerd.log").read_text()[-2000:]
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
                probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b"200 OK" in probe.recv(100)
            except OSError:
                return False

    def kill(self) -> None:
        """kill -9 of dockerd alone: containerd and the containers live on, as after a crash."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> PrivateEngine:
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in (self._process, self._containerd):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(120)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for pid in self._leftovers():
            os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "link", "delete", self._bridge], check=False)
        for mount in self._mounts():
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self._short, ignore_errors=True)

    def _leftovers(self) -> list[int]:
        """Processes of this engine that outlived it (containerd, shims): they name its folder in their arguments."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self._short).encode() in words and int(folder.name) != os.getpid():
                    found.append(int(folder.name))
        return found

    def _mounts(self) -> list[str]:
        lines = Path("/proc/self/mounts").read_text().splitlines()
        return [line.split()[1] for line in reversed(lines) if line.split()[1].startswith(str(self._short))]
