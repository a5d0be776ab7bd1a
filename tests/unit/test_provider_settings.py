"""What an operator may say about a provider, and what is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from fumehood.cli.provider_sandboxes import node_id_of
from fumehood.errors import ConfigurationError
from fumehood.settings import NodeSettings, ProviderSettings, ServerSettings, cores, environment_for


def load(**variables: str) -> ProviderSettings:
    return ProviderSettings.load(env=variables)


def test_variables_have_a_prefix_of_their_own_and_share_the_rest() -> None:
    found = load(
        PROVIDER_NAME="p-1",
        PROVIDER_JOB_TYPES="oa.sandbox_run.v1,oa.retrieval_rerank.v1",
        PROVIDER_HANDLERS="oa.retrieval_rerank.v1=openai",
        PROVIDER_CONCURRENCY="3",
        FUMEHOOD_JOB_MODULES="acme.echo",
        FUMEHOOD_POLICY_FILE="/etc/policy.yaml",
    )
    assert (found.worker_id, found.at_once, found.job_modules) == ("p-1", 3, ("acme.echo",))
    assert found.provider_job_types == ("oa.sandbox_run.v1", "oa.retrieval_rerank.v1")
    assert dict(found.ways) == {"oa.retrieval_rerank.v1": "openai"}
    assert found.policy_file == Path("/etc/policy.yaml")
    assert load().at_once == cores()


def test_a_provider_bears_the_name_of_its_user() -> None:
    file = {"FUMEHOOD_NATS_PASSWORD_FILE": "/p"}
    assert load(FUMEHOOD_NATS_USER="p-2", **file).worker_id == "p-2"
    with pytest.raises(ConfigurationError, match="must be the nats_user"):
        load(FUMEHOOD_NATS_USER="p-2", PROVIDER_NAME="p-1", **file)
    with pytest.raises(ConfigurationError, match="needs a name"):
        _ = load().worker_id


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PROVIDER_NAME", "a b", "letters, digits"),
        ("PROVIDER_STATE_DIR", "here", "absolute"),
        ("PROVIDER_HANDLERS", "openai", "TYPE=HANDLER"),
        ("PROVIDER_HANDLERS", "oa.x.v1=a,oa.x.v1=b", "twice"),
        ("PROVIDER_CONCURRENCY", "0", "between 1 and 1024"),
        ("PROVIDER_REPO_ROOTS", "repos", "absolute"),
        ("PROVIDER_OPENAI_BASE_URL", "ftp://x", "http"),
        ("PROVIDER_OPENAI_BASE_URL", "http://x/v1", "belong together"),
        ("PROVIDER_OPENAI_API_KEY_FILE", "/key", "needs PROVIDER_OPENAI_BASE_URL"),
        ("FUMEHOOD_JOB_MODULES", "acme/echo", "import paths"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(variable: str, value: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load(**{variable: value})


def test_sandboxes_for_another_machine_need_a_policy_or_the_word_that_none_is_wanted() -> None:
    there = {"FUMEHOOD_NATS_SERVERS": "tls://nats.example.org:4222"}
    with pytest.raises(ConfigurationError, match="policy_file"):
        load(**there).check_policy()
    load(**there, FUMEHOOD_DEVELOPMENT_POLICY="true").check_policy()
    load(**there, FUMEHOOD_POLICY_FILE="/etc/policy.yaml").check_policy()
    load(FUMEHOOD_NATS_SERVERS="nats://127.0.0.1:4222").check_policy()


def test_the_key_of_a_model_service_is_for_providers_alone() -> None:
    """`dev` starts all kinds of processes from one environment."""
    given = {"PROVIDER_OPENAI_API_KEY_FILE": "/key", "PATH": "/bin"}
    assert environment_for(ProviderSettings, given) == given
    assert environment_for(ServerSettings, given) == environment_for(NodeSettings, given) == {"PATH": "/bin"}


def test_containers_of_two_providers_of_one_name_are_told_apart(tmp_path: Path) -> None:
    assert node_id_of("p-1", tmp_path / "a") != node_id_of("p-1", tmp_path / "b")
    assert node_id_of("p-1", tmp_path / "a") == node_id_of("p-1", tmp_path / "b" / ".." / "a")
