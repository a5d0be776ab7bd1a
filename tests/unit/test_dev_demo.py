"""What `fumehood dev` brings along: a policy that admits no more than none did, a demo, and what to type next."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fumehood.cli import dev_demo, dev_policy, dev_worker
from fumehood.cli.dev_demo import NAME, Demo
from fumehood.cli.dev_policy import FILE, DevPolicy, kept
from fumehood.cli.dev_ready import Ready
from fumehood.cli.port_holder import holder
from fumehood.engine.definition import parse
from fumehood.errors import ConfigurationError, PolicyDeniedError
from fumehood.images.development import DevelopmentPolicy
from fumehood.images.operator_files import OperatorFiles
from fumehood.images.policy import OperatorPolicy
from fumehood.images.policy_file import read_policy
from fumehood.images.reference import ImageReference
from fumehood.images.run_rules import RunWish
from fumehood.settings import NodeSettings, RegistryCredentials, ServerSettings, WorkerSettings
from fumehood.wire.sandbox import NetworkProfile
from tests.unit.api_server import Answer, ApiServer, api_server

PYTHON_EXEC, TERMINAL_EXEC = "WORKER_PYTHON_EXEC_DOCKER_IMAGE", "WORKER_TERMINAL_EXEC_DOCKER_IMAGE"
REFERENCES = [
    "127.0.0.1:5055/fumehood/base:1", "127.0.0.1/a:1", "localhost:5000/a/b/c:1", "[::1]:5000/a:1", "127.0.0.2:1/a:1",
    "python:3.12", "docker.io/a/b:1", "ghcr.io/a:1", "quay.io/a/b/c/d:1", "public.ecr.aws/x/y:1", "gcr.io/a:1",
    "registry.k8s.io/pause:1", "registry.invalid/x:1", "example.com:5000/x:1", "10.0.0.1:5000/x:1", "eu.gcr.io/a:1",
]  # fmt: skip


def policy_in(folder: Path, *settings: NodeSettings | ServerSettings | WorkerSettings) -> OperatorPolicy:
    made = kept(folder, settings or (NodeSettings(), ServerSettings(), WorkerSettings()))
    return read_policy(made.path, dev_policy._Nobody(), OperatorFiles())


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("unsigned", [True, False])
def test_the_file_admits_no_more_than_no_file_did(tmp_path: Path, reference: str, unsigned: bool) -> None:
    found = policy_in(tmp_path, NodeSettings(unsigned_public_images=unsigned))
    image = ImageReference.parse(reference)
    before = DevelopmentPolicy(allow_unsigned=unsigned).registry_rule(image)
    admitted = before == DevelopmentPolicy.LOOPBACK or (before is not None and unsigned)
    assert (found.registry_rule(image) is not None) == (admitted and not reference.startswith("127.0.0.2"))


@pytest.mark.parametrize("network", list(NetworkProfile))
@pytest.mark.parametrize("user", ["sandbox", "image"])
def test_it_lets_things_run_as_no_file_did(tmp_path: Path, network: NetworkProfile, user: str) -> None:
    wish = RunWish(network=network, user=user)  # type: ignore[arg-type]

    def allowed(policy: OperatorPolicy | DevelopmentPolicy) -> bool:
        try:
            policy.permits(wish)
        except PolicyDeniedError:
            return False
        return True

    assert allowed(policy_in(tmp_path)) == allowed(DevelopmentPolicy())
    assert policy_in(tmp_path).job_repositories == DevelopmentPolicy().job_repositories


def test_one_process_that_admits_no_public_image_is_enough(tmp_path: Path) -> None:
    found = policy_in(tmp_path, NodeSettings(), ServerSettings(unsigned_public_images=False))
    assert found.registry_rule(ImageReference.parse("python:3.12")) is None


def test_registries_of_the_configuration_are_among_the_rules(tmp_path: Path) -> None:
    given = (RegistryCredentials("reg.example"), RegistryCredentials("127.0.0.1:5056"), RegistryCredentials("ghcr.io"))
    found = policy_in(tmp_path, NodeSettings(registries=given), ServerSettings(registries=given))
    assert found.registry_rule(ImageReference.parse("reg.example/a:1")) == "reg.example/**"
    alone = policy_in(tmp_path, NodeSettings(registries=given), ServerSettings())
    assert alone.registry_rule(ImageReference.parse("reg.example/a:1")) is None, "it follows the settings"


def test_an_edit_is_kept_and_said(tmp_path: Path) -> None:
    first = kept(tmp_path, [NodeSettings()])
    assert (first.edited, first.path.stat().st_mode & 0o777) == (False, 0o600)
    edited = first.path.read_text() + "limits: {memory_mib: 128}\n"
    first.path.write_text(edited)
    again = kept(tmp_path, [NodeSettings()])
    assert (again.edited, again.ignored, again.path.read_text()) == (True, False, edited)
    assert kept(tmp_path, [NodeSettings(unsigned_public_images=False)]).ignored
    first.path.unlink()
    assert not kept(tmp_path, [NodeSettings()]).edited


def test_a_wrong_edit_is_told_before_anything_starts(tmp_path: Path) -> None:
    path = kept(tmp_path, [NodeSettings()]).path
    path.write_text(path.read_text().replace("unsigned: true", "unsinged: true", 1))
    with pytest.raises(ConfigurationError, match=r"line 11: .*did you mean unsigned\?; correct it, or remove it"):
        kept(tmp_path, [NodeSettings()])


def test_a_policy_of_ones_own_is_not_replaced(tmp_path: Path) -> None:
    ours = kept(tmp_path, [NodeSettings()])
    assert ours.environment("node", NodeSettings()) == {"FUMEHOOD_POLICY_FILE": str(tmp_path / FILE)}
    assert ours.environment("worker", WorkerSettings()) == {"WORKER_POLICY_FILE": str(tmp_path / FILE)}
    assert ours.environment("node", NodeSettings(policy_file=Path("/etc/mine.yaml"))) == {}


# --- the workflow ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", dev_demo.IMAGES)
def test_the_demo_is_a_workflow(image: str) -> None:
    made = parse(dev_demo.definition(image))
    assert made.name == NAME
    assert {step.sandbox.image for step in made.steps if step.sandbox is not None} == {image}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


@pytest.fixture
def to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(settings: NodeSettings, image: str) -> str:
        return ""

    monkeypatch.setattr(dev_demo, "_trouble", none)


@pytest.mark.usefixtures("to_be_had")
def test_the_demo_is_not_applied_over_somebodys_own(server: ApiServer, tmp_path: Path) -> None:
    path = dev_demo.PATH
    server.answers |= {f"PUT {path}": Answer({"digest": "sha256:ours"})}
    assert dev_demo.prepare(tmp_path, None, server.url, "t") == Demo(dev_demo.IMAGES[0])
    server.answers[f"GET {path}"] = Answer({"digest": "sha256:ours"})
    assert dev_demo.prepare(tmp_path, None, server.url, "t").applied, "it is ours, and may be a newer one"
    server.answers[f"GET {path}"] = Answer({"digest": "sha256:theirs"})
    assert not dev_demo.prepare(tmp_path, None, server.url, "t").applied
    assert [one.method for one in server.asked] == ["GET", "PUT", "GET", "PUT", "GET"]
    assert (tmp_path / dev_demo.FILE).read_text() == dev_demo.definition(dev_demo.IMAGES[0])


@pytest.mark.usefixtures("to_be_had")
def test_a_demo_that_cannot_be_applied_does_not_stop_dev(server: ApiServer, tmp_path: Path) -> None:
    server.answers[f"PUT {dev_demo.PATH}"] = Answer({"type": "x:forbidden", "detail": "this key may not"}, 403)
    found = dev_demo.prepare(tmp_path, None, server.url, "t")
    assert not found.applied
    assert "this key may not" in found.trouble


def test_an_image_that_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first one of a registry that nobody runs, the second one of a policy that does not admit it."""
    policy = kept(tmp_path, [NodeSettings(unsigned_public_images=False)]).path
    monkeypatch.setattr(dev_demo, "IMAGES", ("127.0.0.1:1/none:1", "docker.io/library/python:slim"))
    image, trouble = dev_demo.found(policy)
    assert (image, "no rule of the policy dev is for docker.io/library/python" in trouble) == (
        "docker.io/library/python:slim",
        True,
    )


@pytest.mark.parametrize(
    ("chosen", "trouble", "wanted"),
    [
        ({}, "", {PYTHON_EXEC: dev_worker.PYTHON, TERMINAL_EXEC: dev_worker.PYTHON}),
        ({TERMINAL_EXEC: "python:slim"}, "", {PYTHON_EXEC: dev_worker.PYTHON}),
        ({TERMINAL_EXEC: "a:1", PYTHON_EXEC: "b:1"}, "", {}),
        ({}, "there is none", {}),
    ],
)
def test_the_worker_takes_the_local_python_image_unless_another_was_chosen(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], trouble: str, wanted: dict[str, str]
) -> None:
    for name in (PYTHON_EXEC, TERMINAL_EXEC):
        monkeypatch.delenv(name, raising=False)
    for name, image in chosen.items():
        monkeypatch.setenv(name, image)
    monkeypatch.setattr(dev_demo, "found", lambda policy, images: (images[0], trouble))
    assert dev_worker.images(None) == wanted


# --- what is said ------------------------------------------------------------------------------------------


def told(folder: Path, demo: Demo | None = None, policy: DevPolicy | None = None, *, own_token: bool = True) -> str:
    facts = {
        "server_url": "http://127.0.0.1:8765", "nats_url": "nats://u:p@127.0.0.1:1", "tokens": {"admin": "SECRET"},
        "grpc_target": "127.0.0.1:2", "pids": {"server": 7, "nats": 9}, "providers": [],
    }  # fmt: skip
    out = io.StringIO()
    ready = Ready(folder, facts, [folder / "api.token"] if own_token else [], policy, demo)
    ready.tell(Console(file=out, width=200), None)
    return out.getvalue()


def test_it_says_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = told(tmp_path, Demo("an/image"))
    assert f"  export FUMEHOOD_URL=http://127.0.0.1:8765 FUMEHOOD_API_KEY_FILE={tmp_path}/api.token\n" in said
    assert "  fumehood run an/image -- echo hello\n  fumehood workflow run hello --watch\n" in said
    assert "SECRET" not in said
    monkeypatch.setattr("fumehood.cli.dev_ready.STATE", tmp_path)
    assert "export" not in told(tmp_path, Demo("an/image"))
    assert "FILE_WITH_THE_TOKEN" in told(tmp_path, Demo("an/image"), own_token=False)
    assert "fumehood run" not in told(tmp_path), "without a node nothing could run it"


def test_it_does_not_hide_what_is_missing(tmp_path: Path) -> None:
    assert "note: the image of the demo cannot be had (an/image): no such host" in told(
        tmp_path, Demo("an/image", "no such host")
    )
    assert "note: the workflow hello is your own" in told(tmp_path, Demo("an/image", applied=False))
    edited = DevPolicy(tmp_path / FILE, edited=True, ignored=True)
    assert f"policy      {tmp_path}/policy.yaml (edited)" in told(tmp_path, policy=edited)
    assert "unsigned_public_images and [[registries]]" in told(tmp_path, policy=edited)


def test_who_holds_a_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = holder(port)
        assert found is not None
        assert found.startswith("`")
        (tmp_path / "net").mkdir()
        assert holder(port, tmp_path) is None, "where nothing can be seen, nothing is said"
