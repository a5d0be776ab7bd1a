"""`fumehood broker config`: what it refuses, and that nothing is written or told then."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fumehood.cli import broker
from fumehood.cli.broker_file import BrokerFile, ServerTable, UserTable
from fumehood.cli.main import app
from fumehood.errors import ConfigurationError
from fumehood.settings.base import load_table
from tests.conformance.broker_bench import nats_server_binary

SECRET = "not-to-be-told"
HOSTILE = "\"'{}[]$#:@/%\\"
ONE = """
partitions = 2
storage = "2GiB"
store_dir = "/var/lib/näts"
[[servers]]
name = "n1"
host = "127.0.0.1"
[[users]]
name = "ours"
role = "server"
password_file = "secret"
"""


def password(folder: Path, name: str = "secret", text: str = SECRET) -> None:
    path = folder / name
    path.touch(mode=0o600)
    path.write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    password(tmp_path)
    (tmp_path / "broker.toml").write_text(ONE)
    return tmp_path


def accepted(config: str, folder: Path) -> None:
    """nats-server itself reads it, and starts nothing. It looks whether it could make the store."""
    path = folder / "checked.conf"
    path.write_text(config.replace("/var/lib", str(folder)))
    command = [nats_server_binary(), "-t", "-c", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_it_is_written_for_its_owner_alone_and_flushes_each_write(folder: Path) -> None:
    out = folder / "nats.conf"
    out.touch(mode=0o644)
    done = CliRunner().invoke(app, ["broker", "config", str(folder / "broker.toml"), "--out", str(out)])
    assert (done.exit_code, done.output) == (0, "")
    assert out.stat().st_mode & 0o777 == 0o600
    text = out.read_text()
    assert "# partitions = 2 here must be the same on all servers" in text
    assert "sync_interval: always" in text
    assert SECRET in text
    accepted(text, folder)


def test_it_is_printed_only_when_asked_for(folder: Path) -> None:
    words = ["broker", "config", str(folder / "broker.toml")]
    assert SECRET not in (silent := CliRunner().invoke(app, words)).output
    assert silent.exit_code == 2
    assert SECRET in CliRunner().invoke(app, [*words, "--out", "-"]).stdout


def test_the_example_is_one(tmp_path: Path) -> None:
    """The servers of the example make a cluster that nobody joins without the password."""
    example = CliRunner().invoke(app, ["broker", "config", "--example"]).stdout
    (tmp_path / "broker.toml").write_text(example)
    password(tmp_path, "fumehood.password")
    password(tmp_path, "node-1.password")
    password(tmp_path, "provider-1.password")
    password(tmp_path, "cluster.password", HOSTILE)
    for name in ("n1", "n2", "n3"):
        text = broker.made(tmp_path / "broker.toml", name)
        assert text.count("nats://route:%22%27%7B") == 2
        accepted(text, tmp_path)
    for wanted in (None, "n4"):
        with pytest.raises(ConfigurationError, match="--server must be one of n1, n2, n3"):
            broker.made(tmp_path / "broker.toml", wanted)


def test_the_example_and_the_help_name_every_key(tmp_path: Path) -> None:
    """What is commented out in the example holds as well."""
    (tmp_path / "broker.toml").write_text(re.sub("^# (?=[a-z_]+ = )", "", broker.EXAMPLE, flags=re.MULTILINE))
    cell = load_table(BrokerFile, tmp_path / "broker.toml")
    words = set(re.findall("[a-z_]+", broker.config.__doc__ or ""))
    for table in (cell, cell.servers[0]):
        assert [item.name for item in fields(table) if getattr(table, item.name) is None] == []
    for kind in (BrokerFile, ServerTable, UserTable):
        assert {item.name for item in fields(kind)} <= words


WRONG = {
    "partitons = 3": "unknown setting partitons; did you mean partitions?",
    "partitions = 0": "partitions must be between 1 and 4096",
    "partitions = '2'": "partitions must be an integer",
    "storage = '2GB'": "storage must be a size like 8GiB",
    "storage = '1MiB'": "storage must be a size like 8GiB",
    "store_dir = 'here'": "must be absolute",
    "store_dir = '/a\\nb'": "must be absolute and printable",
    "tls_cert_file = '/c'": "tls_cert_file and tls_key_file belong together",
    "tls_ca_file = '/c'": "tls_ca_file needs tls_cert_file",
    "servers = []": "servers must be one, or at least three",
    "users = []": "users must have one whose role is server",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_key_is_named_and_nothing_is_written(folder: Path, line: str) -> None:
    key = line.split(" ")[0]
    kept = re.sub(f"^{key} = .*", "", "".join(_without(key)), flags=re.MULTILINE)
    (folder / "broker.toml").write_text(line.replace("'", '"') + "\n" + kept)
    _refused(folder, WRONG[line])


def _without(table: str) -> list[str]:
    """The parts of the file without all tables of a name."""
    head, *tables = ONE.split("[[")
    return [head, *(f"[[{text}" for text in tables if not text.startswith(table))]


def _refused(folder: Path, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CliRunner().invoke(
            app,
            ["broker", "config", str(folder / "broker.toml"), "--out", str(folder / "out")],
            catch_exceptions=False,
        )
    assert sentence in caught.value.detail
    assert SECRET not in caught.value.detail
    assert not list(folder.glob("*out*"))


MORE = {
    f'password = "{SECRET}"': "unknown setting users.password; did you mean users.password_file?",
    'nkey = "UA"': "give one of password_file and nkey",
    "trusted = true": "only a worker has",
    'task_types = ["a"]': "only a worker or a provider has",
    '[[users]]\nname = "w"\nrole = "wroker"\nnkey = "U"': "must be one of server, bridge, node, provider, worker",
    f'[[users]]\nname = "w"\nrole = "worker"\nnkey = "{SECRET}"': "users.nkey must be a user's public key",
    '[[users]]\nname = "w"\nrole = "worker"': "give one of password_file and nkey",
    '[[users]]\nname = "server"\nrole = "worker"\npassword_file = "secret"': "must not be server",
    '[[users]]\nname = "server"\nrole = "node"\npassword_file = "secret"': "must not be server",
    '[[users]]\nname = "n"\nrole = "node"\npassword_file = "secret"\ntask_types = ["a"]': "or a provider has",
    '[[users]]\nname = "a.b"\nrole = "worker"\npassword_file = "secret"': "users.name must be",
    '[[users]]\nname = "ours"\nrole = "worker"\npassword_file = "secret"': "users must differ in their names",
    '[[users]]\nname = "w"\nrole = "worker"\npassword_file = "secret"\ntask_types = [">"]': "a task type may only",
    '[[users]]\nname = "w"\nrole = "worker"\npassword_file = "secret"\ntask_types = []': "at least one",
    '[[users]]\nname = "w"\nrole = "worker"\npassword_file = "secret"\ntenant = "*"': "a tenant may only",
    '[[users]]\nname = "w"\nrole = "worker"\npassword_file = "absent"': "cannot be read",
    '[[servers]]\nname = "n2"\nhost = "127.0.0.1"': "servers must be one, or at least three",
    '[[servers]]\nname = "n2"\nhost = "a\\"b"': "servers.host must be",
    '[[servers]]\nname = "n2"\nhost = "a"\nport = 0': "port must be between",
    '[[servers]]\nname = "n2"': "servers: each table needs a host",
}


@pytest.mark.parametrize("more", MORE)
def test_a_wrong_table_is_named_and_nothing_is_written(folder: Path, more: str) -> None:
    (folder / "broker.toml").write_text(ONE + more)
    _refused(folder, MORE[more])


CLUSTER = {
    ("10.0.0.1", "10.0.0.2", "10.0.0.3"): "needs cluster_password_file",
    ("127.0.0.1", "::1", "10.0.0.3"): "needs cluster_password_file",
    ("127.0.0.1", "::1", "127.0.0.1"): "servers must differ in their routes",
    ("127.0.0.1", "::", "127.0.0.2"): "needs an address for the others",
}


@pytest.mark.parametrize("hosts", CLUSTER)
def test_a_cluster_that_could_not_work_or_that_anybody_could_join_is_refused(
    folder: Path, hosts: tuple[str, str, str]
) -> None:
    servers = [f'[[servers]]\nname = "n{n}"\nhost = "{host}"' for n, host in enumerate(hosts)]
    (folder / "broker.toml").write_text("\n".join([*_without("servers"), *servers]))
    _refused(folder, CLUSTER[hosts])


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_password_that_others_can_reach_is_refused(folder: Path, mode: int) -> None:
    (folder / "secret").chmod(mode)
    _refused(folder, "accessible to others")


def test_what_is_not_a_file_is_left_alone(folder: Path) -> None:
    for out, sentence in ((folder, "is not a file"), (folder / "no" / "out", "cannot be written")):
        with pytest.raises(ConfigurationError, match=sentence):
            broker._write(out, SECRET)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=64))
def test_any_password_stands_in_one_string(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever it is made of, it ends nowhere but at its end."""
    folder = tmp_path_factory.mktemp("any")
    password(folder, text=text)
    (folder / "broker.toml").write_text(ONE)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    assert f'{{ user: "ours", password: "{escaped}" }}' in broker.made(folder / "broker.toml")
