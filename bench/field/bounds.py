"""What must hold, all of it in one table. A full run is held to `most`; a quick one, which CI makes, to `quick`.

A quick run has few rounds, on a machine that others use, too: its bounds leave room for that, and are there to notice
code that has become dearer. `None`: not judged there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.field import rows
from bench.field.samples import Measured

PLAIN, GVISOR = "plain", "gvisor"


@dataclass(frozen=True, slots=True)
class Most:
    """By the kind of runtime: one that shares the host's kernel, and gVisor."""

    plain: float | None
    gvisor: float | None

    def of(self, kind: str) -> float | None:
        return self.plain if kind == PLAIN else self.gvisor


@dataclass(frozen=True, slots=True)
class Bound:
    """The median of a row over that of the bare row it stands against."""

    row: str
    most: Most
    quick: Most


BOUNDS = (
    Bound(rows.WARM_TRUE, Most(0.06, 0.10), quick=Most(0.12, 0.20)),
    Bound(rows.WARM_PYTHON, Most(0.15, 0.20), quick=Most(0.25, 0.40)),
    Bound(rows.PYTHON_EXEC, Most(0.08, 0.12), quick=Most(0.16, 0.24)),
    Bound(rows.RUN, Most(0.30, 0.30), quick=Most(0.50, None)),
    Bound(rows.COLD_TRUE_GONE, Most(1.10, 1.10), quick=Most(1.25, None)),
    Bound(rows.COLD_PYTHON_GONE, Most(1.10, 1.10), quick=Most(1.25, None)),
    Bound(rows.SESSION, Most(0.15, 0.15), quick=Most(0.25, None)),
    Bound(rows.SESSION_HTTP, Most(0.15, 0.15), quick=Most(None, None)),
)

BURST = Most(1.2, 1.2)
"""P99 of a burst over the bare engine's P99 of the same burst."""
BURST_QUICK = Most(1.5, None)
"""Of P95: a short burst has no P99."""

AHEAD: Mapping[str, tuple[str, ...]] = {
    rows.WARM_PYTHON: (rows.LLM_FIRST, rows.LLM_POOLED, rows.REX_FIRST),
    rows.SESSION_PYTHON: (rows.LLM_NEXT, rows.REX_NEXT),
    rows.REMOVAL: (rows.LLM_REMOVAL, rows.REX_REMOVAL),
}
"""Rows of ours, and those of peers that they must be ahead of."""

_SESSION = (
    "Timed step by step in another run of 2026-11-19, in which a command took 7.5 ms: 1.3 for storing it under its "
    "number, 0.7 for sending it, 2.6 for fork, exec and exit in the sandbox, 1.0 for its signed receipt and 0.7 for "
    "storing its end; the gRPC frames and all between these steps are 1.2. The engine's exec stores and signs nothing."
)
_GVISOR = "Under gVisor a fork takes 3 to 5 ms and the start of a dynamic program 8 to 11."
_CURRENT = (
    "Docker 28.5 with crun takes about 0.55 of the time that Docker 20.10 takes with runc. What is ours gained less: "
    "here it takes 0.8 to 0.9 of the time that it takes there."
)
LIMITS: Mapping[tuple[str, str], str] = {
    (rows.WARM_TRUE, "crun"): (
        f"{_CURRENT} Timed in another run of 2026-11-19 with runc, in which `true` took 11.7 ms: 2.7 in the sandbox, "
        "1.0 for the claim and 0.8 for storing the end. The other 7.2 were not divided: HTTP, the decision about the "
        "image, the signed receipt and the ledger's other writes."
    ),
    (rows.PYTHON_EXEC, "crun"): f"{_CURRENT} What is ours was not divided for this row.",
    (rows.SESSION, PLAIN): _SESSION,
    (rows.SESSION, GVISOR): _GVISOR,
    (rows.SESSION_HTTP, PLAIN): "As at the worker; HTTP, the check of the key and the server's own hop come on top.",
    (rows.SESSION_HTTP, GVISOR): _GVISOR,
    (rows.COLD_PYTHON_GONE, "crun"): (
        "Measured on 2026-11-19: our answer comes 19 ms sooner than the bare engine's, but the removal takes "
        "77 ms instead of 34, because the warden still runs then and is ended first."
    ),
    (rows.COLD_TRUE_GONE, GVISOR): f"The command is a second process beside the warden. {_GVISOR}",
    (rows.COLD_PYTHON_GONE, GVISOR): f"The command is a second process beside the warden. {_GVISOR}",
    (f"{rows.SESSION_PYTHON} / {rows.REX_NEXT}", PLAIN): (
        "swe-rex's server starts the command as a child of its own, inside the container. It stores and signs nothing."
    ),
}
"""What stands in the way of a bound that was not reached, by row and by the runtime or its kind."""


def limit(row: str, runtime: str) -> str:
    return LIMITS.get((row, runtime)) or LIMITS.get((row, kind_of(runtime)), "not known")


@dataclass(frozen=True, slots=True)
class Held:
    """One bound, and what was found."""

    row: str
    value: float
    most: float

    @property
    def holds(self) -> bool:
        return self.value <= self.most


def kind_of(runtime: str) -> str:
    return GVISOR if runtime.startswith("runsc") else PLAIN


def held(runtime: str, measured: Mapping[str, Measured], *, quick: bool) -> list[Held]:
    """Of the rows that were measured, those with a bound."""
    kind, found = kind_of(runtime), []
    for bound in BOUNDS:
        most = (bound.quick if quick else bound.most).of(kind)
        one = measured.get(bound.row)
        if most is not None and one is not None and one.ratio is not None:
            found.append(Held(bound.row, one.ratio.value, most))
    return found


def burst_most(runtime: str, *, quick: bool) -> float | None:
    return (BURST_QUICK if quick else BURST).of(kind_of(runtime))


def ahead(measured: Mapping[str, Measured]) -> list[Held]:
    """Ours over each peer's: at most 1."""
    return [
        Held(f"{ours} / {peer}", measured[ours].times.p50 / measured[peer].times.p50, 1.0)
        for ours, peers in AHEAD.items()
        for peer in peers
        if ours in measured and peer in measured
    ]


def strain(checks: Sequence[Held]) -> float:
    """How near to its bound the nearest is; above 1 one does not hold."""
    return max((one.value / one.most for one in checks), default=0.0)
