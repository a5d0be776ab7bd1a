"""The kernel's other entries: a filter on 64-bit calls is worth nothing if the 32-bit ones are open."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node_process import NodeProcess

PROGRAM = r"""
import ctypes, struct
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(0, 8192, 7, 0x62, -1, 0)  # below 4 GiB, executable
ctypes.memmove(at + 4096, struct.pack("<3i", 40, 1, 0), 12)  # socket(AF_VSOCK, SOCK_STREAM, 0)
# socketcall by int 0x80
code = b"\x53\xb8\x66\0\0\0\xbb\x01\0\0\0\xb9" + struct.pack("<I", at + 4096) + b"\xcd\x80\x5b\xc3"
ctypes.memmove(at, code, len(code))
descriptor = ctypes.CFUNCTYPE(ctypes.c_int)(at)()
import os
print("open" if 0 <= descriptor < 1024 and os.path.exists(f"/proc/self/fd/{descriptor}") else "shut")
"""


@pytest.mark.hostile
@pytest.mark.parametrize("runtime", ["runc", pytest.param("runsc", marks=pytest.mark.gvisor)])
async def test_a_socket_family_that_is_refused_is_not_had_through_the_32_bit_entry(
    docker_socket: Path, tmp_path: Path, python_image: str, runtime: str
) -> None:
    async with NodeProcess(tmp_path, runtime=runtime) as node:
        answer = (await node.run_job(["python3", "-c", PROGRAM], image=python_image)).json()
        plain = "import socket; socket.socket(40)"
        refused = (await node.run_job(["python3", "-c", plain], image=python_image)).json()
    assert "open" not in answer["stdout"]
    if runtime == "runc":
        assert (answer["status"], answer["exit_code"]) == ("failed", 128 + 31), "SIGSYS"
    assert refused["exit_code"] == 1
    assert "socket" in refused["stderr"]
