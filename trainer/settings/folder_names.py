"""The names that a run folder can have."""

import re
import unicodedata
from collections.abc import Iterator

# Of file systems, in bytes; the files of a checkpoint need some of the whole.
LONGEST_PART = 255
LONGEST_NAME = 3500


def folder_mistakes(name: str) -> Iterator[str]:
    """The first mistake in a folder's name, as a text that follows the name of its key."""
    if name == "":
        yield "is empty; name a folder"
    elif any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        yield f"is {ascii(name)[:200]}, which holds a control character or no text; name a folder"
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name):
        yield f"is {name[:200]!r}, a URL, but a run is written to a folder of a file system; name a folder"
    elif max(map(len, name.encode().split(b"/"))) > LONGEST_PART or len(name.encode()) > LONGEST_NAME:
        yield (
            f"begins {name[:40]!r} and is too long: at most {LONGEST_PART} bytes between two slashes, "
            f"{LONGEST_NAME} in all"
        )
