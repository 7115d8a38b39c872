"""What a launcher (ours, torchrun, Slurm's scripts) has told this process: read here alone, and checked."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from longmix.data_prep.errors import MachineFault, UserError

RANK, SIZE, LOCAL_RANK, ADDRESS, PORT = "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"
# They place a process in a run of several.
LAUNCH_VARIABLES = (RANK, SIZE, LOCAL_RANK, ADDRESS, PORT)
# The process id of our launcher.
LAUNCHER = "LONGMIX_LAUNCHER"
THREADS = "OMP_NUM_THREADS"
# The ranks of one machine, in the words of several launchers: Accelerate takes each for a number.
LOCAL_SIZES = (
    *("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS"),
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
)
LARGEST_WORLD = 2**20
LARGEST_PORT = 2**16 - 1
LARGEST_PROCESS = 2**22
MOST_THREADS = 2**12


def usable_cpus() -> int:
    """How many CPUs this process may run on: of a part of a machine not all."""
    return len(os.sched_getaffinity(0))


class EnvironmentMistake(UserError):
    """The environment describes no run: nothing says which rank should tell that, so each does."""


class EnvironmentFault(MachineFault):
    """This rank's machine is not as the environment says: others find nothing wrong, so it tells that itself."""


@dataclass(frozen=True)
class LaunchEnvironment:
    """The place of this process in a run.

    Attributes:
        is_worker: whether a launcher has started it as one of several, or as the only one.
        address, port: where the ranks meet; None if nothing says so, which a lone rank needs not know.
        launcher: process id of our launcher; None for another one.
    """

    rank: int
    size: int
    local_rank: int
    is_worker: bool
    address: str | None
    port: int | None
    launcher: int | None

    @classmethod
    def read(cls, values: Mapping[str, str] = os.environ) -> "LaunchEnvironment":
        """Raises EnvironmentMistake, naming the variable, if the environment describes no run."""
        size = _number(values, SIZE, 1, LARGEST_WORLD)
        rank = _number(values, RANK, 0, LARGEST_WORLD)
        if (rank is None) != (size is None):
            there, missing = (RANK, SIZE) if size is None else (SIZE, RANK)
            raise EnvironmentMistake(
                f"the environment has {there}={values[there]}, but no {missing}: a launcher sets "
                f"{', '.join(LAUNCH_VARIABLES)} together; unset it to train without one"
            )
        is_worker = rank is not None
        rank, size = (rank, size) if is_worker else (0, 1)
        if rank >= size:
            raise EnvironmentMistake(
                f"the environment says {RANK}={rank} of {SIZE}={size}: a rank lies in 0 .. {SIZE} - 1"
            )
        local_rank = _number(values, LOCAL_RANK, 0, size - 1) if is_worker else None
        port = _number(values, PORT, 1, LARGEST_PORT) if is_worker else None
        for name in LOCAL_SIZES:
            _number(values, name, 1, LARGEST_WORLD)
        _check_threads(values)
        return cls(rank, size, local_rank or 0, is_worker, values.get(ADDRESS) or None, port, launcher(values))

    def require_meeting_point(self) -> tuple[str, int]:
        """Address and port. Raises EnvironmentMistake if the ranks cannot know where to meet."""
        if self.address is None or self.port is None:
            missing = ADDRESS if self.address is None else PORT
            raise EnvironmentMistake(
                f"the environment has {SIZE}={self.size}, but no {missing}: the ranks cannot know where to meet; a "
                f"launcher sets {', '.join(LAUNCH_VARIABLES)} together"
            )
        return self.address, self.port


def launcher(values: Mapping[str, str] = os.environ) -> int | None:
    """The process id of our launcher. Raises EnvironmentMistake if it is none."""
    return _number(values, LAUNCHER, 1, LARGEST_PROCESS)


def tells(told: UserError | MachineFault) -> bool:
    """Whether this process tells what all ranks of its run find alike. Never raises: anything may have gone wrong."""
    if isinstance(told, EnvironmentMistake | EnvironmentFault):
        return True
    return re.fullmatch(r"0*[1-9]\d{0,6}", os.environ.get(RANK, "")) is None


def _number(values: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    # int() would take " 1", "1_0" and digits of any script; a long text it would refuse.
    if re.fullmatch(r"[0-9]{1,12}", text) is None or not least <= int(text) <= most:
        raise EnvironmentMistake(
            f"the environment variable {name} is {text[:80]!r}, but a launcher sets it to a whole number from {least} "
            f"to {most}"
        )
    return int(text)


def _check_threads(values: Mapping[str, str]) -> None:
    """OpenMP passes over what it does not understand, and ends the process where it gets no further thread."""
    text = values.get(THREADS)
    numbers = [] if text is None else text.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,6}\s*", part) and 1 <= int(part) <= MOST_THREADS for part in numbers):
        raise EnvironmentMistake(
            f"the environment variable {THREADS} is {text[:80]!r}, but takes a whole number from 1 to {MOST_THREADS}"
        )
