"""The firewall's text, the decision about runtimes, and what a container is given with a network."""

from __future__ import annotations

import re
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import NetworkUnavailableError, SandboxStartError
from fumehood.sandbox.docker.network_runtimes import networks
from fumehood.sandbox.docker.plan import Plan, container_body, network_name, observe
from fumehood.sandbox.network import mark, ports
from fumehood.sandbox.network.attachment import Attachment, proxy_env, resolv_conf_text, resolver_of
from fumehood.sandbox.network.gvisor import RuntimeFacts, network_mode, network_trouble, with_network
from fumehood.sandbox.network.ruleset import PROFILES, Bridge, interface_name, node_mark, ruleset
from fumehood.sandbox.spec import SANDBOX_USER, Limits, Network, network_of
from fumehood.wire.sandbox import NetworkProfile

MARK = node_mark("node-1")
GATEWAY = IPv4Address("172.18.0.1")


def bridge(profile: Network) -> Bridge:
    return Bridge(profile, interface_name(MARK, profile), IPv4Network("172.18.0.0/16"), GATEWAY)


def chain(text: str, name: str) -> list[str]:
    """The rules of one chain, without the line that begins it."""
    return text.split(f"chain {name} {{")[1].split("}\n")[0].strip().splitlines()


# --- the firewall ------------------------------------------------------------------------------------------


def test_names_fit_into_what_the_kernel_takes() -> None:
    for profile in PROFILES:
        assert len(interface_name(MARK, profile)) <= 15
    assert len({interface_name(MARK, profile) for profile in PROFILES}) == 3
    assert node_mark("node-2") != MARK


def test_before_there_is_a_bridge_everything_is_shut() -> None:
    text = ruleset(MARK, ())
    assert [chain(text, name) for name in ("to_node", "outward", "inward")] == [["drop"]] * 3
    for profile in PROFILES:
        assert text.count(f'"{interface_name(MARK, profile)}"') == 3  # input, and forward in both directions


def test_each_profile_has_its_one_port() -> None:
    text = ruleset(MARK, [bridge(Network.DNS_ONLY), bridge(Network.RESTRICTED)])
    names, proxied = interface_name(MARK, Network.DNS_ONLY), interface_name(MARK, Network.RESTRICTED)
    ours = "ip saddr 172.18.0.0/16 ip daddr 172.18.0.1"
    accepted = [line for line in chain(text, "to_node") if not line.endswith(" drop")]
    assert accepted == [
        f'iifname "{names}" {ours} tcp dport 53 accept',
        f'iifname "{names}" {ours} udp dport 53 accept',
        f'iifname "{proxied}" {ours} tcp dport 3128 accept',
        "drop",
    ]
    assert chain(text, "outward") == chain(text, "inward") == ["drop"]


@pytest.mark.parametrize("profile", PROFILES)
def test_too_many_from_one_address_are_dropped_before_they_are_accepted(profile: Network) -> None:
    """Whatever is accepted has a line right before it that bounds it for each source."""
    lines = chain(ruleset(MARK, [bridge(profile)]), "to_node")[:-1]
    assert len(lines) == (2 if profile is Network.RESTRICTED else 4)
    for bound, accept in zip(lines[::2], lines[1::2], strict=True):
        assert bound.startswith(accept.removesuffix(" accept"))
        assert re.search(r" update @\w+ \{ ip saddr limit rate over \d+/second burst \d+ packets \} drop$", bound)


def test_only_full_goes_out_and_only_to_public_addresses() -> None:
    text = ruleset(MARK, map(bridge, PROFILES))
    out, back = chain(text, "outward"), chain(text, "inward")
    full = interface_name(MARK, Network.FULL)
    assert out[1:] == back[1:] == ["drop"]
    assert out[0].startswith(f'iifname "{full}" oifname != ')
    assert out[0].endswith("ip saddr 172.18.0.0/16 ip daddr != @special accept")
    assert back[0] == f'oifname "{full}" ip saddr != @special ct state established,related accept'
    assert "169.254.0.0/16" in text


def test_a_table_replaces_its_former_self_as_a_whole() -> None:
    assert ruleset(MARK, ()).splitlines()[:3] == [
        f"table inet fumehood_{MARK}",
        f"delete table inet fumehood_{MARK}",
        f"table inet fumehood_{MARK} {{",
    ]


# --- runtimes ----------------------------------------------------------------------------------------------

NEW, OLD = "runsc version release-20240729.0\nspec: 1.1.0", "runsc version 0.0~20221219.0\nspec: 1.0.2-dev"


@pytest.mark.parametrize(
    ("facts", "trouble"),
    [
        (RuntimeFacts("runc"), None),
        (RuntimeFacts("crun", ("--network=none",)), None),
        (RuntimeFacts("runsc", (), NEW), None),
        (RuntimeFacts("runsc", ("--network=sandbox",), "runsc version 0.0~20240729.0"), None),
        (RuntimeFacts("runsc", (), OLD), "2022"),
        (RuntimeFacts("runsc-net", ("--network=sandbox",), OLD), "2022"),
        (RuntimeFacts("runsc", ("--network=none",), NEW), "--network=none"),
        (RuntimeFacts("runsc", ("-network", "none"), NEW), "--network=none"),
        (RuntimeFacts("runsc", ("--network=sandbox", "--network=host"), NEW), "--network=host"),
        (RuntimeFacts("runsc", ("--network",), NEW), "--network="),
        (RuntimeFacts("runsc", (), ""), "version"),
        (RuntimeFacts("runsc", (), "runsc version VERSION_MISSING"), "version"),
    ],
)
def test_which_runtimes_have_a_network(facts: RuntimeFacts, trouble: str | None) -> None:
    found = network_trouble(facts)
    assert (found is None) == (trouble is None)
    assert (trouble or "") in (found or "")


def test_the_last_flag_counts() -> None:
    assert network_mode(["--platform=systrap"]) == "sandbox"
    assert network_mode(["--network=none", "--network=sandbox"]) == "sandbox"


def test_a_runtime_of_the_same_kind_steps_in() -> None:
    troubles = {"runc": None, "runsc": "no network", "runsc-net": None}
    assert with_network("runc", troubles) == "runc"
    assert with_network("runsc", troubles) == "runsc-net"
    assert with_network("runsc", {"runsc": None, "runsc-net": None}) == "runsc"


def test_never_a_weaker_runtime() -> None:
    with pytest.raises(NetworkUnavailableError, match=r"2022.*2024 or later.*deny-all"):
        with_network("runsc", {"runc": None, "runsc": "it is of 2022"})
    with pytest.raises(NetworkUnavailableError, match="no runtime kata"):
        with_network("kata", {"runc": None})


def test_what_is_reported_of_networks() -> None:
    assert networks(None) == dict.fromkeys(map(str, Network), "")
    assert networks("no nft") == {"none": "", "dns-only": "no nft", "restricted": "no nft", "full": "no nft"}


# --- what a container is given -----------------------------------------------------------------------------

PLAN = Plan(
    image="127.0.0.1:5055/a@sha256:" + "0" * 64,
    runtime="runc",
    warden=Path("/state/warden"),
    limits=Limits(),
    user=SANDBOX_USER,
    network=Network.NONE,
    read_only_root=True,
    labels={},
)


def attached(profile: Network) -> Plan:
    attachment = Attachment(
        profile,
        network_name("n", profile),
        resolver_of(profile, GATEWAY),
        Path("/state/resolv.conf"),
        proxy_env(profile, GATEWAY),
    )
    return replace(PLAN, network=profile, attachment=attachment)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_network_changes_nothing_else(profile: Network) -> None:
    """The floor is the same: one network, one resolver, one file more."""
    body, plain = container_body(attached(profile)), container_body(PLAN)
    host = body["HostConfig"]
    assert host.pop("NetworkMode") == f"fumehood-n-{profile}"
    assert host.pop("Dns") == ["127.0.0.1" if profile is Network.RESTRICTED else "172.18.0.1"]
    assert host["Mounts"].pop() == {
        "Type": "bind",
        "Source": "/state/resolv.conf",
        "Target": "/etc/resolv.conf",
        "ReadOnly": True,
    }
    body.pop("Env")
    assert plain["HostConfig"].pop("NetworkMode") == "none"
    assert body == plain
    assert "Env" not in plain


def test_a_network_that_was_not_prepared_is_refused() -> None:
    for plan in (replace(PLAN, network=Network.FULL), replace(attached(Network.FULL), network=Network.NONE)):
        with pytest.raises(SandboxStartError):
            container_body(plan)


def test_programs_are_told_of_the_proxy() -> None:
    env = dict(one.split("=", 1) for one in proxy_env(Network.RESTRICTED, GATEWAY))
    assert (
        env["HTTPS_PROXY"] == env["https_proxy"] == env["HTTP_PROXY"] == env["http_proxy"] == "http://172.18.0.1:3128"
    )
    assert env["NO_PROXY"] == env["no_proxy"] == "localhost,127.0.0.1,::1"
    assert proxy_env(Network.FULL, GATEWAY) == proxy_env(Network.DNS_ONLY, GATEWAY) == ()
    assert resolv_conf_text("172.18.0.1").startswith("nameserver 172.18.0.1\n")


def test_what_is_observed_is_what_the_engine_says() -> None:
    name = network_name("n", Network.FULL)
    inspected: dict[str, Any] = {
        "HostConfig": {"NetworkMode": name},
        "NetworkSettings": {"Networks": {name: {"IPAddress": "172.18.0.2"}}},
    }
    seen = observe(inspected)
    assert (seen.network, seen.network_name, seen.network_address) == ("full", name, "172.18.0.2")
    inspected["NetworkSettings"]["Networks"]["bridge"] = {"IPAddress": "172.17.0.2"}
    assert observe(inspected).network == f"bridge, {name}"
    none = observe({"HostConfig": {"NetworkMode": "none"}, "NetworkSettings": {"Networks": {"none": {}}}})
    assert (none.network, none.network_name, none.network_address) == ("none", "", "")
    assert observe({"HostConfig": {"NetworkMode": "host"}}).network == "host"


def test_every_profile_is_a_network() -> None:
    assert {profile.value: network_of(profile).value for profile in NetworkProfile} == {
        "deny-all": "none",
        "localhost": "none",
        "dns-only": "dns-only",
        "restricted": "restricted",
        "full": "full",
    }


# --- ports and marks ---------------------------------------------------------------------------------------


def test_every_port_is_isolated(tmp_path: Path) -> None:
    for name, value in {"veth1": "0\n", "veth2": "1\n"}.items():
        port = tmp_path / "br" / "brif" / name
        port.mkdir(parents=True)
        (port / "isolated").write_text(value)
    ports.isolate("br", sysfs=tmp_path)
    assert [flag.read_text().strip() for flag in tmp_path.glob("br/brif/*/isolated")] == ["1", "1"]


def test_a_port_that_cannot_be_isolated_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "br" / "brif" / "veth1" / "isolated").mkdir(parents=True)
    with pytest.raises(NetworkUnavailableError, match="apart"):
        ports.isolate("br", sysfs=tmp_path)
    (tmp_path / "old" / "brif" / "veth1").mkdir(parents=True)  # a kernel that has no such flag
    with pytest.raises(NetworkUnavailableError, match="apart"):
        ports.isolate("old", sysfs=tmp_path)


def test_a_sign_of_life_has_one_holder_and_goes_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "signs"
    assert not mark.is_alive(MARK, folder=folder)
    sign = mark.take(MARK, folder=folder)
    assert sign is not None
    with sign:
        assert mark.is_alive(MARK, folder=folder)
        assert mark.take(MARK, folder=folder) is None
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not mark.is_alive(MARK, folder=folder)
    assert list(folder.iterdir()) == []
    sign.close()


def test_a_sign_of_life_goes_with_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from fumehood.sandbox.network import mark; "
        "sign = mark.take(sys.argv[1], folder=pathlib.Path(sys.argv[2])); print(sign is not None, flush=True); "
        "sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, MARK, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        assert mark.is_alive(MARK, folder=tmp_path)
        process.kill()
    assert not mark.is_alive(MARK, folder=tmp_path)
    sign = mark.take(MARK, folder=tmp_path)
    assert sign is not None
    sign.close()


def test_nobody_else_can_give_a_sign_of_life(tmp_path: Path) -> None:
    """A name that any user of the machine could take would let any of them stop a node's networks."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as squatter:
        squatter.bind(f"\0fumehood-networks-{MARK}")
        assert not mark.is_alive(MARK, folder=tmp_path)
    for mode in (0o777, 0o755, 0o770):
        tmp_path.chmod(mode)
        with pytest.raises(NetworkUnavailableError, match="nobody else can enter"):
            mark.take(MARK, folder=tmp_path)
        assert mark.is_alive(MARK, folder=tmp_path)  # it cannot be told: leave its things alone
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(NetworkUnavailableError, match="cannot keep its sign"):
        mark.take(MARK, folder=tmp_path / "link")
