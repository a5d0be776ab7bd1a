"""Certificates on both sides, and a user who is known by a key instead of a password."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fumehood.broker.access import Role, ServerOptions, User, server_config
from fumehood.broker.connection import Connection, ConnectionOptions
from fumehood.errors import BrokerError, ConfigurationError
from tests.conformance.broker_bench import NatsServer
from tests.conftest import unavailable
from tests.waiting import PATIENCE

_EXTENSIONS = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(directory: Path, *arguments: str) -> None:
    if shutil.which("openssl") is None:
        unavailable("no openssl")
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem`, and one certificate that serves both sides."""
    made = tmp_path_factory.mktemp("tls")
    (made / "ext").write_text(_EXTENSIONS)
    authority = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    openssl(made, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test-ca", *authority)
    openssl(made, "req", *_KEY, "-keyout", "one.key", "-out", "one.csr", "-subj", "/CN=one")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext")
    openssl(made, "x509", "-req", "-in", "one.csr", *signing, "-out", "one.pem")
    return made


@pytest.fixture(scope="module")
def seed_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nkeys = pytest.importorskip("nkeys")
    path = tmp_path_factory.mktemp("nkey") / "seed"
    path.write_bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def options(
    tmp_path_factory: pytest.TempPathFactory, certificates: Path, seed_file: Path
) -> Iterator[ConnectionOptions]:
    """How to reach a server that asks for a certificate and knows one user, by key."""
    nkeys = pytest.importorskip("nkeys")
    key = nkeys.from_seed(bytearray(seed_file.read_bytes())).public_key.decode()
    server = NatsServer(tmp_path_factory.mktemp("nats"), 1)
    server._config.write_text(
        server_config(
            ServerOptions(
                1,
                server._directory / "store",
                (User("ours", Role.SERVER, nkey=key),),
                port=server._port,
                tls_cert_file=certificates / "one.pem",
                tls_key_file=certificates / "one.key",
                tls_ca_file=certificates / "ca.pem",
            )
        )
    )
    server.start()
    yield ConnectionOptions(
        (f"tls://127.0.0.1:{server._port}",),
        nkey_seed_file=seed_file,
        tls_ca_file=certificates / "ca.pem",
        tls_cert_file=certificates / "one.pem",
        tls_key_file=certificates / "one.key",
        connect_timeout=5.0,
    )
    server.kill()


async def test_a_key_and_a_certificate_let_in(options: ConnectionOptions) -> None:
    connection = await Connection.open(options)
    assert (await connection.api("INFO"))["type"].endswith("account_info_response")
    await connection.close()


@pytest.mark.parametrize("lacking", ["tls_cert_file", "nkey_seed_file"])
async def test_without_one_of_them_nobody_gets_in(options: ConnectionOptions, lacking: str) -> None:
    with pytest.raises((BrokerError, ConfigurationError)):
        await Connection.open(replace(options, **{lacking: None, "connect_timeout": 2.0}))  # type: ignore[arg-type]


async def test_a_password_is_never_sent_in_plain_text_where_tls_was_asked_for(certificates: Path) -> None:
    """An impostor that says no TLS is needed learns nothing."""
    heard, left = bytearray(), asyncio.Event()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.0","max_payload":1048576,"auth_required":true}\r\n')
        heard.extend(await reader.read())
        left.set()
        writer.close()

    async with await asyncio.start_server(impostor, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        asked = ConnectionOptions(
            (f"nats://127.0.0.1:{port}",),
            user="u",
            password="very-secret",
            tls_ca_file=certificates / "ca.pem",
            connect_timeout=5.0,
        )
        with pytest.raises(ConfigurationError, match="does not offer TLS"):
            await Connection.open(asked)
        async with asyncio.timeout(PATIENCE):
            await left.wait()
    assert b"very-secret" not in heard
