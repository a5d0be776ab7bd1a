"""From the settings of a process to its admission."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import FilteringBoundLogger

from fumehood.cli.admission import ImageSettings, admitting
from fumehood.cli.node_process import serve
from fumehood.errors import ConfigurationError, ImageDeniedError
from fumehood.images import DevelopmentPolicy
from fumehood.images.policy import OperatorPolicy
from fumehood.settings import NodeSettings, RegistryCredentials, ServerSettings
from tests.unit.policy_world import GOOD

DIGEST = "sha256:" + "ab" * 32
KINDS: list[type[NodeSettings | ServerSettings]] = [NodeSettings, ServerSettings]


def log() -> FilteringBoundLogger:
    made: FilteringBoundLogger = structlog.get_logger()
    return made


def test_one_file_serves_both_processes(tmp_path: Path) -> None:
    config = tmp_path / "fumehood.toml"
    config.write_text(
        'policy_file = "/etc/policy.yaml"\nunsigned_public_images = false\n[[registries]]\nhost = "r.example"\n'
    )
    for kind in KINDS:
        loaded: ImageSettings = kind.load(env={}, config_file=config)
        assert loaded.policy_file == Path("/etc/policy.yaml")
        assert loaded.unsigned_public_images is False
        assert loaded.registries == (RegistryCredentials("r.example"),)


@pytest.mark.parametrize("kind", KINDS)
def test_a_variable_names_the_policy(kind: type[NodeSettings | ServerSettings]) -> None:
    assert kind.load(env={"FUMEHOOD_POLICY_FILE": "/p"}).policy_file == Path("/p")
    assert kind.load(env={}).policy_file is None


@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_file_it_is_development_and_that_is_a_warning(
    kind: type[NodeSettings | ServerSettings],
) -> None:
    settings = kind(registries=(RegistryCredentials("r.example"),))
    with capture_logs() as logs:
        async with admitting(settings, log()) as images:
            assert isinstance(images.admission.policy, DevelopmentPolicy)
            assert images.counts == {}
            assert images.accesses.keys() == {"r.example"}
            assert (await images.admission.admit(f"r.example/a@{DIGEST}")).evidence.rule == "unsigned-public"
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("admission.development_policy", "warning")
    assert "r.example" in line["notice"]


async def test_credentials_admit_nothing_once_there_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(GOOD)
    settings = NodeSettings(policy_file=file, registries=(RegistryCredentials("r.example"),))
    with capture_logs() as logs:
        async with admitting(settings, log()) as images:
            policy = images.admission.policy
            assert isinstance(policy, OperatorPolicy)
            assert images.counts == {"loaded": 1, "refused": 0}
            with pytest.raises(ImageDeniedError) as caught:
                await images.admission.admit(f"r.example/a@{DIGEST}")
    assert caught.value.reason == "registry_not_allowed"
    assert [(line["event"], line["sha256"]) for line in logs] == [("admission.policy_file", policy.sha256)]


async def test_a_wrong_file_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the policy file .* cannot be read"):
        async with admitting(NodeSettings(policy_file=tmp_path / "none")):
            pytest.fail("it opened")


async def test_a_password_that_cannot_be_read_is_said_without_it(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    for make, reason in ((lambda: None, "No such file"), (lambda: secret.write_bytes(b"\xff"), "it is not UTF-8")):
        make()
        with pytest.raises(
            ConfigurationError, match=f"the password file {secret} of r.example cannot be read: {reason}"
        ):
            async with admitting(NodeSettings(registries=(RegistryCredentials("r.example", "u", secret),))):
                pytest.fail("it opened")


HERE = ("nats://127.0.0.1:4222", "nats://localhost:4222", "tls://[::1]:4222")


@pytest.mark.parametrize("servers", [("nats://broker.example:4222",), (*HERE, "nats://10.0.0.1:4222"), ("nats://[",)])
def test_a_node_of_a_broker_elsewhere_needs_a_policy_or_the_word_that_none_is_wanted(servers: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="development_policy = true"):
        NodeSettings(nats_servers=servers).check_policy()
    NodeSettings(nats_servers=servers, policy_file=Path("/p")).check_policy()
    NodeSettings(nats_servers=servers, development_policy=True).check_policy()


@pytest.mark.parametrize("servers", [(), HERE])
def test_a_node_on_its_own_machine_needs_none(servers: tuple[str, ...]) -> None:
    NodeSettings(nats_servers=servers).check_policy()


async def test_such_a_node_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="policy_file"):
        await serve(NodeSettings(nats_servers=("nats://10.0.0.1:4222",), state_dir=tmp_path / "state"))
    assert not (tmp_path / "state").exists()
