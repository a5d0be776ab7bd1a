"""Settings: where they come from, which win, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fumehood.errors import ConfigurationError
from fumehood.settings import NodeSettings, RegistryCredentials, ServerSettings, cores, is_loopback


def write(folder: Path, text: str) -> Path:
    path = folder / "node.toml"
    path.write_text(text)
    return path


def test_the_defaults_need_nothing() -> None:
    settings = NodeSettings.load(env={})
    assert settings == NodeSettings()
    assert (settings.host, settings.port, settings.default_timeout_seconds) == ("127.0.0.1", 8090, 300)
    assert (settings.max_timeout_seconds, settings.output_limit_bytes) == (3600, 262_144)
    assert settings.body_limit_bytes == 10 * 1024 * 1024


def test_the_defaults_that_depend_on_the_machine() -> None:
    settings = NodeSettings()
    assert settings.effective_slots == 4 * cores()
    assert settings.effective_concurrent_starts == 2 * cores()
    assert NodeSettings(slots=3, concurrent_starts=5).effective_slots == 3
    assert NodeSettings(slots=3, concurrent_starts=5).effective_concurrent_starts == 5


def test_an_override_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    config = write(tmp_path, "port = 1\nqueue = 1\nslots = 1\n")
    settings = NodeSettings.load(env={"FUMEHOOD_PORT": "2", "FUMEHOOD_QUEUE": "2"}, config_file=config, port=3)
    assert (settings.port, settings.queue, settings.slots) == (3, 2, 1)


def test_an_override_of_none_counts_as_not_given() -> None:
    assert NodeSettings.load(env={"FUMEHOOD_PORT": "2"}, port=None).port == 2


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    config = write(tmp_path, "port = 7\n")
    assert NodeSettings.load(env={"FUMEHOOD_CONFIG": str(config)}).port == 7


def test_each_type_is_read_from_text() -> None:
    settings = NodeSettings.load(
        env={
            "FUMEHOOD_STATE_DIR": "/srv/x",
            "FUMEHOOD_QUEUE_WAIT_SECONDS": "0.5",
            "FUMEHOOD_READ_ONLY_ROOT": "false",
            "FUMEHOOD_RUN_AS": "image",
            "FUMEHOOD_RUNTIME": "runsc",
            "PATH": "/bin",
        }
    )
    assert settings.state_dir == Path("/srv/x")
    assert (settings.queue_wait_seconds, settings.read_only_root) == (0.5, False)
    assert (settings.run_as, settings.runtime) == ("image", "runsc")


def test_variables_of_the_scripts_and_the_tests_are_left_alone() -> None:
    assert NodeSettings.load(env={"FUMEHOOD_TEST_REGISTRY": "x", "FUMEHOOD_SERVICES_DIR": "x"}) == NodeSettings()


def test_a_stronger_source_of_the_token_takes_the_weaker_away(tmp_path: Path) -> None:
    config = write(tmp_path, "worker_api_token_file = '/f'\n")
    env = {"FUMEHOOD_WORKER_API_TOKEN": "abc"}
    from_env = NodeSettings.load(env=env, config_file=config)
    assert (from_env.worker_api_token, from_env.worker_api_token_file) == ("abc", None)
    overridden = NodeSettings.load(env=env, worker_api_token_file=Path("/g"))
    assert (overridden.worker_api_token, overridden.worker_api_token_file) == (None, Path("/g"))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"FUMEHOOD_PROT": "1"}, "unknown setting FUMEHOOD_PROT; did you mean FUMEHOOD_PORT?"),
        ({"FUMEHOOD_port": "1"}, "unknown setting FUMEHOOD_port"),
        ({"FUMEHOOD_REGISTRIES": "x"}, "unknown setting FUMEHOOD_REGISTRIES"),
        ({"FUMEHOOD_WORKER_API_TOKEN_CONFIG": "x"}, "unknown setting FUMEHOOD_WORKER_API_TOKEN_CONFIG"),
        ({"FUMEHOOD_PORT": "eighty"}, "FUMEHOOD_PORT must be an integer"),
        ({"FUMEHOOD_PORT": "1_0"}, "FUMEHOOD_PORT must be an integer"),
        ({"FUMEHOOD_PORT": ""}, "FUMEHOOD_PORT is empty"),
        ({"FUMEHOOD_PORT": "65536"}, "port must be between 0 and 65535"),
        ({"FUMEHOOD_INSECURE": "maybe"}, "FUMEHOOD_INSECURE must be true or false"),
        ({"FUMEHOOD_QUEUE_WAIT_SECONDS": "nan"}, "queue_wait_seconds must be between"),
        ({"FUMEHOOD_RUN_AS": "root"}, "FUMEHOOD_RUN_AS must be one of sandbox, image"),
        ({"FUMEHOOD_LOG_LEVEL": "loud"}, "FUMEHOOD_LOG_LEVEL must be one of debug, info, warning, error"),
        ({"FUMEHOOD_NODE_ID": "a b"}, "node_id must be at most 64 letters"),
        ({"FUMEHOOD_OTLP_ENDPOINT": "collector:4318"}, "otlp_endpoint must begin with http:// or https://"),
        ({"FUMEHOOD_DOCKER_SOCKET": "docker.sock"}, "docker_socket must be an absolute path"),
        ({"FUMEHOOD_WORKER_API_TOKEN": "two words"}, "worker_api_token must be visible ASCII"),
        ({"FUMEHOOD_DEFAULT_TIMEOUT_SECONDS": "4000"}, "default_timeout_seconds is above max_timeout_seconds"),
        ({"FUMEHOOD_INSECURE": "1", "FUMEHOOD_HOST": "0.0.0.0"}, "insecure is allowed only on a loopback host"),
        ({"FUMEHOOD_WORKER_API_TOKEN": "a", "FUMEHOOD_WORKER_API_TOKEN_FILE": "/f"}, "give one of them"),
    ],
)
def test_a_wrong_variable_is_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        NodeSettings.load(env=env)
    assert message in caught.value.detail


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown setting prot; did you mean port?"),
        ('port = "1"', "port must be an integer"),
        ("port = true", "port must be an integer"),
        ("insecure = 1", "insecure must be true or false"),
        ("port = ", "not valid TOML"),
        ("registries = 1", "registries must be a list of tables"),
        ("[[registries]]\nusername = 'u'", "each table needs a host"),
        ("[[registries]]\nhost = 'h'\nusername = 'u'", "username and password_file belong together"),
        ("[[registries]]\nhost = 'h'\npasswd = 'u'", "unknown setting registries.passwd"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        NodeSettings.load(env={}, config_file=write(tmp_path, text))
    assert message in caught.value.detail


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    """An operator may have several."""
    with pytest.raises(ConfigurationError) as caught:
        NodeSettings.load(env={}, config_file=write(tmp_path, "prot = 1"))
    assert str(tmp_path / "node.toml") in caught.value.detail


def test_a_file_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        NodeSettings.load(env={}, config_file=tmp_path / "absent.toml")
    said = f"the configuration file {tmp_path / 'absent.toml'} cannot be read: No such file or directory"
    assert caught.value.detail == said


def test_an_unknown_override_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="unknown setting prot"):
        NodeSettings.load(env={}, prot=1)


def test_registries_come_from_the_file(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        "[[registries]]\nhost = 'r:5001'\nusername = 'u'\npassword_file = '/p'\nca_file = '/c'\n"
        "[[registries]]\nhost = 'open'\n",
    )
    assert NodeSettings.load(env={}, config_file=config).registries == (
        RegistryCredentials("r:5001", "u", Path("/p"), Path("/c")),
        RegistryCredentials("open"),
    )


def test_a_token_never_shows_in_a_repr_or_an_error() -> None:
    assert "hush" not in repr(NodeSettings(worker_api_token="hush"))
    with pytest.raises(ConfigurationError) as caught:
        NodeSettings(worker_api_token="hush hush")
    assert "hush" not in str(caught.value)


def test_a_token_of_the_file_remembers_where_it_stands(tmp_path: Path) -> None:
    config = write(tmp_path, "worker_api_token = 'abc'\n")
    assert NodeSettings.load(env={}, config_file=config).worker_api_token_config == config
    from_env = NodeSettings.load(env={"FUMEHOOD_WORKER_API_TOKEN": "abc"}, config_file=config)
    assert from_env.worker_api_token_config is None


def test_a_longer_timeout_is_clamped_and_none_is_the_default() -> None:
    settings = NodeSettings(default_timeout_seconds=5, max_timeout_seconds=10)
    assert [settings.effective_timeout(asked) for asked in (None, 1, 10, 10**30)] == [5, 1, 10, 10]


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NodeSettings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("10.0.0.1", False), ("example.com", False), ("", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# --- servers -----------------------------------------------------------------------------------------------


def test_a_server_needs_nothing_either_and_is_closed() -> None:
    settings = ServerSettings.load(env={})
    assert settings == ServerSettings()
    assert (settings.host, settings.port, settings.nats_servers) == ("127.0.0.1", 8080, ("nats://127.0.0.1:4222",))
    assert (settings.api.token, settings.api.file, settings.bridge.token) == (None, None, None)


def test_the_bridges_token_has_the_contracts_variable() -> None:
    settings = ServerSettings.load(env={"DAGNATS_BRIDGE_TOKEN": "abc", "FUMEHOOD_API_TOKEN": "def"})
    assert (settings.bridge.token, settings.api.token) == ("abc", "def")
    assert "abc" not in repr(settings)
    assert "def" not in repr(settings.api)
    overridden = ServerSettings.load(env={"DAGNATS_BRIDGE_TOKEN": "abc"}, bridge_token_file=Path("/f"))
    assert (overridden.bridge.token, overridden.bridge.file) == (None, Path("/f"))


def test_addresses_are_separated_by_commas_or_a_list(tmp_path: Path) -> None:
    wanted = ("nats://a:1", "tls://b:2")
    assert ServerSettings.load(env={"FUMEHOOD_NATS_SERVERS": "nats://a:1, tls://b:2"}).nats_servers == wanted
    config = write(tmp_path, "nats_servers = ['nats://a:1', 'tls://b:2']\n")
    assert ServerSettings.load(env={}, config_file=config).nats_servers == wanted


def test_one_environment_and_one_file_serve_both_processes(tmp_path: Path) -> None:
    config = write(tmp_path, "slots = 3\npartitions = 2\n[[registries]]\nhost = 'h'\n")
    env = {"FUMEHOOD_RUNTIME": "runc", "FUMEHOOD_API_TOKEN": "abc", "DAGNATS_BRIDGE_TOKEN": "def"}
    node, server = NodeSettings.load(env=env, config_file=config), ServerSettings.load(env=env, config_file=config)
    assert (node.slots, node.runtime) == (3, "runc")
    assert (server.partitions, server.api_token) == (2, "abc")


def test_a_token_of_each_kind_in_the_file_rotates_with_it(tmp_path: Path) -> None:
    config = write(tmp_path, "api_token = 'abc'\nbridge_token = 'def'\n")
    settings = ServerSettings.load(env={"DAGNATS_BRIDGE_TOKEN": "other"}, config_file=config)
    assert (settings.api.config, settings.bridge.config) == (config, None)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {"FUMEHOOD_BRIDGE_TOKEN": "x"},
            "did you mean FUMEHOOD_BRIDGE_TOKEN_FILE?",
        ),
        ({"DAGNATS_BRIDGE_TOKEN": ""}, "DAGNATS_BRIDGE_TOKEN is empty"),
        ({"FUMEHOOD_NATS_SERVERS": "http://a"}, "nats_servers must be addresses like nats://HOST:PORT"),
        ({"FUMEHOOD_NATS_SERVERS": "nats://a,"}, "nats_servers must be addresses like nats://HOST:PORT"),
        ({"FUMEHOOD_NATS_SERVERS": "nats://hush:hush@a"}, "nats_servers must hold no credentials"),
        ({"FUMEHOOD_NATS_USER": "u"}, "nats_user and nats_password_file belong together"),
        ({"FUMEHOOD_NATS_NKEY_FILE": "/a", "FUMEHOOD_NATS_CREDENTIALS_FILE": "/b"}, "give one of nats_user"),
        ({"FUMEHOOD_NATS_CERT_FILE": "/a"}, "nats_cert_file and nats_key_file belong together"),
        ({"FUMEHOOD_NATS_CERT_FILE": "/a", "FUMEHOOD_NATS_KEY_FILE": "/b"}, "nats_cert_file needs nats_ca_file"),
        ({"FUMEHOOD_INSECURE": "1", "FUMEHOOD_HOST": "0.0.0.0"}, "insecure is allowed only on a loopback host"),
        ({"FUMEHOOD_API_TOKEN": "a", "FUMEHOOD_API_TOKEN_FILE": "/f"}, "api_token and api_token_file are both set"),
        ({"DAGNATS_BRIDGE_TOKEN": "a b"}, "bridge_token must be visible ASCII"),
        ({"FUMEHOOD_GRPC_HOST": "0.0.0.0"}, "workers would be spoken to in plain text"),
        ({"FUMEHOOD_GRPC_TLS_CERT_FILE": "/a"}, "grpc_tls_cert_file and grpc_tls_key_file belong together"),
        ({"FUMEHOOD_GRPC_CLIENT_CA_FILE": "/a"}, "grpc_client_ca_file needs grpc_tls_cert_file"),
        ({"FUMEHOOD_REPLICAS": "6"}, "replicas must be between 1 and 5"),
        ({"FUMEHOOD_SERVER_ID": "a b"}, "server_id must be at most 64 letters"),
    ],
)
def test_a_wrong_variable_of_a_server_is_named(env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ServerSettings.load(env=env)
    assert message in caught.value.detail
    assert "hush" not in caught.value.detail
