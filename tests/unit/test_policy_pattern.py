"""Which images a rule is about."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fumehood.images.pattern import ImagePattern
from fumehood.images.reference import ImageReference

hosts = st.sampled_from(["r.example", "r.example:1", "127.0.0.1:5055", "[::1]:5", "h:1"])
parts = st.sampled_from(["a", "b"])
paths = st.lists(parts, min_size=1, max_size=4)

WORLD = [
    ImageReference(registry, "/".join(path), tag="1")
    for registry in (
        "r.example",
        "r.example:1",
        "r.example:9",
        "127.0.0.1:5055",
        "127.0.0.1:9",
        "[::1]:5",
        "[::1]",
        "h:1",
        "h:9",
    )
    for depth in range(1, 6)
    for path in itertools.product(("a", "b", "other"), repeat=depth)
]
"""All images that there are for these tests, with hosts, ports and parts that no pattern names."""


@st.composite
def references(draw: st.DrawFn) -> ImageReference:
    return ImageReference(draw(hosts), "/".join(draw(paths)), tag="1")


@st.composite
def patterns(draw: st.DrawFn) -> ImagePattern:
    host = draw(hosts)
    if draw(st.booleans()):
        host = (host.rpartition(":")[0] or host) + ":*"
    path = draw(st.lists(parts, max_size=3))
    rest = draw(st.sampled_from([[], ["*"], ["**"]]))
    assume(path or rest)
    return ImagePattern.parse("/".join([host, *path, *rest]))


def covers(wide: ImagePattern, narrow: ImagePattern) -> bool:
    return wide in set(narrow.wider())


def matches(pattern: str, image: str) -> bool:
    return ImagePattern.parse(pattern).matches(ImageReference.parse(image))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (
            "registry.example/team/tool",
            [
                "registry.example/team/tool",
                "registry.example/team/tool:1",
                "registry.example/team/tool@sha256:" + "0" * 64,
            ],
            [
                "registry.example/team/tool/x",
                "registry.example/team/tools",
                "registry.example/team",
                "registry.example:443/team/tool",
            ],
        ),
        (
            "registry.example/team/*",
            ["registry.example/team/a"],
            ["registry.example/team", "registry.example/team/a/b", "registry.example/teams/a", "evil.example/team/a"],
        ),
        (
            "registry.example/team/**",
            ["registry.example/team/a", "registry.example/team/a/b/c"],
            ["registry.example/team"],
        ),
        ("registry.example/*", ["registry.example/a"], ["registry.example/a/b", "registry.example:5000/a"]),
        ("registry.example/**", ["registry.example/a", "registry.example/a/b"], ["registry.example.evil.example/a"]),
        ("127.0.0.1:*/**", ["127.0.0.1:1/a", "127.0.0.1:5055/a/b", "127.0.0.1/a"], ["127.0.0.11:1/a", "localhost:1/a"]),
        ("[::1]:*/**", ["[::1]:5000/a", "[0:0::1]:5000/a", "[::1]/a"], ["[::2]:5000/a"]),
        ("build:*/**", ["build:5000/a"], ["build/a"]),
        (
            "docker.io/library/python",
            ["python", "python:3.12", "docker.io/python", "index.docker.io/library/python"],
            ["me/python"],
        ),
        ("docker.io/library/*", ["python", "busybox"], ["grafana/grafana"]),
        ("docker.io/**", ["python", "grafana/grafana"], ["ghcr.io/a"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [image for image in yes if not matches(pattern, image)] == []
    assert [image for image in no if matches(pattern, image)] == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("python", "a registry and a repository"),
        ("", "a registry and a repository"),
        ("registry.example", "a registry and a repository"),
        ("registry.example/", "the repository's name is missing"),
        ("team/tool", "a registry without dot or port"),
        ("*/**", "a registry is named in full"),
        ("**", "a registry and a repository"),
        ("*.example/**", "a registry is named in full"),
        ("registry.*/**", "a registry is named in full"),
        ("registry.example:50*/**", "a registry is named in full"),
        ("registry.example:5000:*/**", "two ports"),
        ("[::1:*/**", "brackets"),
        ("registry.example:0/**", "port is not a number"),
        ("Registry.example/**", "must be lower case"),
        ("index.docker.io/**", "an old name of docker.io"),
        ("127.1/**", "not four plain decimal numbers"),
        ("registry.example/team-*", "whole parts"),
        ("registry.example/*/tool", "whole parts"),
        ("registry.example/**/tool", "whole parts"),
        ("registry.example/team/***", "whole parts"),
        ("registry.example/team/tool:1", "neither tag nor digest"),
        ("registry.example/team/tool@sha256:ab", "neither tag nor digest"),
        ("registry.example/Team/*", "lower case"),
        ("registry.example//tool", "each part of the repository"),
        ("registry.example/team/", "each part of the repository"),
        ("https://registry.example/**", "the registry's port"),
        ("docker.io/python", "write docker.io/library/python"),
        ("docker.io/*", "write docker.io/library/*"),
        ("a" * 2000 + "/b", "a registry and a repository"),
    ],
)
def test_what_is_no_pattern_is_said_why(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the reason is looked at below
        ImagePattern.parse(pattern)
    assert reason in str(caught.value)


@given(patterns())
def test_a_pattern_reads_as_it_is_written(pattern: ImagePattern) -> None:
    assert ImagePattern.parse(str(pattern)) == pattern


@given(references())
def test_an_image_matches_its_own_name_and_nothing_that_is_not_it(reference: ImageReference) -> None:
    assert ImagePattern.parse(reference.name).matches(reference)
    assert not ImagePattern.parse(f"{reference.name}/*").matches(reference)
    assert not ImagePattern.parse(f"{reference.name}/**").matches(reference)


@given(references(), st.data())
def test_stars_match_what_they_stand_for(reference: ImageReference, data: st.DataObject) -> None:
    found = reference.repository.split("/")
    kept = data.draw(st.integers(0, len(found) - 1))
    prefix = "/".join([reference.registry, *found[:kept]])
    assert ImagePattern.parse(f"{prefix}/**").matches(reference)
    assert ImagePattern.parse(f"{prefix}/*").matches(reference) == (kept == len(found) - 1)


@given(patterns(), patterns(), references())
@example(ImagePattern.parse("h:*/a/**"), ImagePattern.parse("h:1/a/*"), ImageReference("h:1", "a/b", "1"))
def test_what_is_covered_matches_nothing_else(wide: ImagePattern, narrow: ImagePattern, image: ImageReference) -> None:
    """So a rule behind one that covers it is dead."""
    if covers(wide, narrow) and narrow.matches(image):
        assert wide.matches(image)


@given(patterns(), patterns())
def test_what_is_not_covered_matches_something_of_its_own(wide: ImagePattern, narrow: ImagePattern) -> None:
    """Among all images of a small world: so no rule is called dead that is not, and none is missed."""
    alone = [image for image in WORLD if narrow.matches(image) and not wide.matches(image)]
    assert covers(wide, narrow) == (alone == [])


@given(patterns(), patterns())
def test_what_covers_both_ways_is_the_same(one: ImagePattern, other: ImagePattern) -> None:
    assert covers(one, one)
    if covers(one, other) and covers(other, one):
        assert one == other


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("r.example/**", "r.example/a/b"),
        ("r.example/**", "r.example/a/*"),
        ("r.example/a/**", "r.example/a/**"),
        ("r.example/a/*", "r.example/a/b"),
        ("127.0.0.1:*/**", "127.0.0.1:5000/a"),
        ("127.0.0.1:*/**", "127.0.0.1:*/a/**"),
    ],
)
def test_what_covers_what(wide: str, narrow: str) -> None:
    assert covers(ImagePattern.parse(wide), ImagePattern.parse(narrow))
    assert wide == narrow or not covers(ImagePattern.parse(narrow), ImagePattern.parse(wide))
