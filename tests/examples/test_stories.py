"""Pages about runs and workers, as somebody reads them: block after block, in one terminal, with a real server."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fumehood.cli.processes import held_port
from fumehood.settings import ServerSettings
from tests.conftest import unavailable
from tests.dev_process import Dev, running_dev
from tests.examples import installed
from tests.examples.markdown import ROOT, Scene, story
from tests.examples.terminal import Terminal

WITH_DEV = [
    "docs/howto/write-a-workflow.md",
    "docs/howto/people-and-signals.md",
    "docs/howto/repair-runs.md",
    "docs/howto/limit-work.md",
    "docs/howto/keys-and-tenants.md",
    "docs/howto/find-and-follow-runs.md",
    "docs/howto/schedule-workflows.md",
    "docs/howto/write-a-worker.md",
    "docs/howto/use-the-command-line.md",
    "docs/howto/verify-results.md",
]
"""These say that `fumehood dev` runs."""
WITH_NODE = [
    "README.md",
    "docs/howto/run-images.md",
    "docs/howto/use-sessions.md",
    "docs/howto/run-commands.md",
    "docs/howto/sandboxes-over-http.md",
    "docs/howto/submit-jobs.md",
    "docs/tutorial/first-verified-job.md",
    "docs/tutorial/first-sandbox.md",
    "docs/howto/use-the-python-sdk.md",
    "docs/explanation/sdk-shapes.md",
]
"""These run images with it."""
FIRST_PAGES = ("README.md", "docs/tutorial/first-sandbox.md")
"""The gate always plays these; the others only if they, an example, the command line or the SDK changed."""
ON_ITS_OWN = [
    "docs/tutorial/first-workflow.md",
    "docs/tutorial/add-a-job-type.md",
    "docs/tutorial/first-signed-image.md",
    "docs/howto/run-a-server.md",
    "docs/howto/run-a-worker.md",
    "docs/howto/keep-sandboxes-warm.md",
]
"""These start what they need."""
CHANGING = re.compile(
    r"(?:run-)?\b[0-9a-f]{32}\b|\d{4}-\d\d-\d\dT[\d:.]+Z"
    r"|(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d{3})?"
    r"|(?<= )(?:\d+\.\d|(?:\d+m )?\d+)s(?=\s)"
)
COLUMNS = re.compile(r" {2,}| +(?=\n)")
"""How wide a column of a table is depends on what else is in it."""


@pytest.fixture(scope="module")
def dev_without_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Pages with lists of runs have it for themselves."""
    with running_dev(tmp_path_factory.mktemp("dev"), "--no-node", python=installed.python()) as made:
        yield made


def comparable(text: str, language: str) -> Any:
    """Without what is another one each time: times and how long something took, as programs and people write
    it, and names of runs, leases and requests."""
    same = CHANGING.sub("another", text)
    return json.loads(same) if language == "json" else COLUMNS.sub("  ", same)


def play(scenes: list[Scene], terminal: Terminal) -> None:
    for scene in scenes:
        if scene.file:
            terminal.save(scene.file, scene.text)
            continue
        printed = terminal.type(scene.text)
        if scene.prints is not None:
            wanted = comparable(terminal.here(scene.prints), scene.language)
            assert comparable(printed, scene.language) == wanted, scene.text


@pytest.mark.parametrize("page", WITH_DEV + WITH_NODE + ON_ITS_OWN)
def test_a_page_has_blocks_that_are_typed_in(page: str) -> None:
    """Else a slip of a mark would switch all of this off."""
    assert [scene for scene in story(page) if not scene.file]


@pytest.mark.example
@pytest.mark.parametrize("page", WITH_DEV)
def test_a_page_works_as_written(page: str, dev_without_node: Dev, tmp_path: Path) -> None:
    read(page, dev_without_node, tmp_path)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page in FIRST_PAGES else [pytest.mark.example], id=page) for page in WITH_NODE],
)
def test_a_page_that_runs_images_works_as_written(page: str, dev: Dev, tmp_path: Path) -> None:
    read(page, dev, tmp_path)


def read(page: str, dev: Dev, tmp_path: Path) -> None:
    """The command line finds the token where `fumehood dev` leaves it; only the port is another one than a reader's."""
    home = tmp_path / ".local" / "state"
    home.mkdir(parents=True)
    (home / "fumehood").symlink_to(dev.state)
    with Terminal(tmp_path, dev.places, {"FUMEHOOD_URL": dev.server_url}) as terminal:
        play(story(page), terminal)


def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    """Its `fumehood dev` is its own: it is killed in the middle."""
    http, nats = held_port(), held_port()
    places = {"4333": str(nats), "fumehood dev ": f"fumehood dev --http-port {http} --grpc-port 0 "}
    with Terminal(tmp_path, places, {"FUMEHOOD_URL": f"http://127.0.0.1:{http}"}) as terminal:
        play(story("docs/tutorial/first-workflow.md"), terminal)


@pytest.mark.example
def test_the_job_of_a_killed_node_is_finished_as_the_tutorial_says(
    tmp_path: Path, docker_socket: Path, images: Mapping[str, str]
) -> None:
    """The rest of the page needs no `fumehood dev` of its own: `test_examples.py` plays it."""
    node = held_port()
    options = f"--http-port 0 --grpc-port 0 --nats-port 0 --node-port {node} "
    places = {"8090": str(node), "fumehood dev ": f"fumehood dev {options}"}
    with Terminal(tmp_path, places) as terminal:
        play(story("docs/tutorial/first-job.md"), terminal)


@pytest.mark.example
def test_the_tutorial_about_job_types_works_as_written(tmp_path: Path) -> None:
    """Its `fumehood dev` is its own: it has one type more. What it tells people to save is what `examples/` has."""
    scenes = story("docs/tutorial/add-a-job-type.md")
    (module,) = (scene.text for scene in scenes if scene.file == "wordcount.py")
    assert module == (ROOT / "examples/job_types/wordcount.py").read_text(encoding="utf-8")
    http = held_port()
    places = {"fumehood dev ": f"fumehood dev --http-port {http} --grpc-port 0 --nats-port 0 "}
    with Terminal(tmp_path, places, {"FUMEHOOD_URL": f"http://127.0.0.1:{http}"}) as terminal:
        play(scenes, terminal)


@pytest.mark.example
def test_the_tutorial_about_signed_images_works_as_written(
    tmp_path: Path, docker_socket: Path, images: Mapping[str, str], services: Mapping[str, str]
) -> None:
    """Its `fumehood dev` is its own, under its own policy; its repository is one that nobody has signed in before."""
    http = held_port()
    ports = f"--http-port {http} --node-port 0 --grpc-port 0 --nats-port 0 "
    places = {
        "127.0.0.1:5055/mine": f"127.0.0.1:5055/test-{uuid.uuid4().hex[:12]}",
        "/var/tmp/fumehood-services/cosign": str(Path(services["FUMEHOOD_TEST_COSIGN"]).parent),
        "fumehood dev ": f"fumehood dev {ports}",
    }
    with Terminal(tmp_path, places, {"FUMEHOOD_URL": f"http://127.0.0.1:{http}"}) as terminal:
        play(story("docs/tutorial/first-signed-image.md"), terminal)


@pytest.mark.example
def test_the_page_about_warm_sandboxes_works_as_written(
    tmp_path: Path, docker_socket: Path, images: Mapping[str, str]
) -> None:
    """Its `fumehood dev` is its own: it keeps some."""
    http, node = held_port(), held_port()
    ports = f"--http-port {http} --node-port {node} --grpc-port 0 --nats-port 0 "
    places = {"8090": str(node), "fumehood dev ": f"fumehood dev {ports}"}
    with Terminal(tmp_path, places, {"FUMEHOOD_URL": f"http://127.0.0.1:{http}"}) as terminal:
        play(story("docs/howto/keep-sandboxes-warm.md"), terminal)


@pytest.mark.example
def test_the_page_about_workers_works_as_written(
    tmp_path: Path, docker_socket: Path, images: Mapping[str, str]
) -> None:
    """Its server is its own: it has certificates."""
    options = "--http-port 0 --nats-port 0 "
    places = {"50051": str(held_port()), "fumehood dev --no-node ": f"fumehood dev --no-node {options}"}
    with Terminal(tmp_path, places) as terminal:
        play(story("docs/howto/run-a-worker.md"), terminal)


# --- a whole cell ------------------------------------------------------------------------------------------


def openssl(folder: Path, *arguments: str) -> None:
    if shutil.which("openssl") is None:
        unavailable("no openssl")
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def certify(folder: Path, addresses: Sequence[str]) -> None:
    """What the reader's own authority would have made; one certificate for all brokers, since they are all here."""
    folder.mkdir(parents=True)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    authority = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", *authority)
    names = ",".join(f"IP:{address}" for address in addresses)
    (folder / "ext").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("broker", "client"):
        openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")


@pytest.mark.example
def test_the_page_about_servers_makes_a_cell_that_bears_a_loss(tmp_path: Path) -> None:
    """Three brokers with TLS on loopback addresses of this test's own, a server, a worker, and a death."""
    network = f"127.{random.randrange(1, 255)}.{random.randrange(256)}."  # one that no other run has
    etc = tmp_path / "etc"
    certify(etc / "tls", [f"{network}{n}" for n in (1, 2, 3)])
    places = {
        "10.0.0.": network,
        "/etc/fumehood": str(etc),
        "/var/lib/nats": str(tmp_path / "store"),
        "0.0.0.0": "127.0.0.1",
        "8080": str(held_port()),
        "50051": str(held_port()),
    }
    with Terminal(tmp_path, places) as terminal:
        play(story("docs/howto/run-a-server.md"), terminal)


def test_the_servers_configuration_in_the_how_to_is_accepted(tmp_path: Path) -> None:
    (toml,) = [scene.text for scene in story("docs/howto/run-a-server.md") if scene.file == "server.toml"]
    file = tmp_path / "server.toml"
    file.write_text(toml, encoding="utf-8")
    assert ServerSettings.load(env={}, config_file=file).replicas == 3
