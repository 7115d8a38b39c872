"""Files and folders that one rank has made and the others must see: network file systems show them late."""

import contextlib
import errno
import os
import socket
import time
from pathlib import Path

from longmix.data_prep.errors import UserError

from .world import World, agree

# NFS believes for up to a minute that a name is missing, or still names what it did.
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.05


def require_seen(path: Path) -> None:
    """Wait until this host sees a file or folder that another rank has made. Raises FileNotFoundError if it never
    does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            text = f"{socket.gethostname()} does not see in {PATIENCE_SECONDS:g} s what another rank has made"
            raise FileNotFoundError(errno.ENOENT, text, str(path))
        time.sleep(POLL_SECONDS)
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # so most file systems ask again for what is there


def see_together(world: World, path: Path) -> None:
    """Wait until every rank sees a file or folder that rank 0 has made; every rank must call it.

    Raises:
        SharedMistake: a rank does not see it.
    """

    def see() -> None:
        try:
            require_seen(path)
        except FileNotFoundError as error:
            raise UserError(f"{path}: {error.strerror}: run.dir must lie where all hosts share it") from None

    agree(world, see)
