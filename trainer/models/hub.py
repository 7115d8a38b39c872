"""The Hugging Face hub: whether it can be reached, found out once and soon."""

import functools
import threading

from huggingface_hub import constants
from huggingface_hub.utils import get_session

from longmix.data_prep.errors import reason_of

PATIENCE_SECONDS = 5.0


@functools.cache
def why_unreachable() -> str | None:
    """Why nothing can be fetched from the hub now, in words; None if it answers.

    One short attempt decides it for this process. Left to itself the client tries every file of a name again and
    again, with growing pauses, before it says that there is no network.
    """
    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    found: list[str | None] = []

    def attempt() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=PATIENCE_SECONDS)
            found.append(None)
        except Exception as error:  # its kinds are those of the client's own HTTP library, which changes
            found.append(f"{constants.ENDPOINT} cannot be reached: {reason_of(error)}")

    # In a thread: the time-out of a request does not bound how long a name server is waited for.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return found[0] if found else f"{constants.ENDPOINT} does not answer within {PATIENCE_SECONDS:g} seconds"
