"""A file system that shows other processes late what one has made or renamed, as network file systems do.

Python's own calls alone are patched; what reads by itself (safetensors) is asked for after one of them has found it.
"""

import builtins
import contextlib
import errno
import fcntl
import io
import itertools
import json
import os
import shutil
import time
from pathlib import Path


class SlowFileSystem:
    """A context in which what other processes make or rename shows `lag` seconds after this one first asks for it.

    Until then it is missing, or the file that it took the place of. Every process of a group enters it with the same
    `notes`, a folder outside of what they look at.
    """

    def __init__(self, notes: str, lag: float):
        self._notes, self._lag, self._numbers = Path(notes), lag, itertools.count()
        self._kept, self._asked = {}, {}

    def __enter__(self):
        self._notes.mkdir(parents=True, exist_ok=True)
        for module, name in ((os, "replace"), (os, "rename")):
            self._patch(module, name, self._renaming)
        self._patch(os, "mkdir", self._making)
        for module, name in ((os, "stat"), (os, "lstat"), (os, "open"), (io, "open"), (builtins, "open")):
            self._patch(module, name, self._looking)
        self._patch(os, "listdir", self._listing)
        self._patch(os, "scandir", self._scanning)
        return self

    def __exit__(self, *error):
        for (module, name), function in self._kept.items():
            setattr(module, name, function)

    def _patch(self, module, name, make):
        function = self._kept[module, name] = getattr(module, name)
        setattr(module, name, make(function))

    # The side that writes: a note first, so that nobody sees too soon.

    def _note(self, made, old=None):
        value = {"made": made, "old": old}
        name = f"{time.monotonic_ns():020d}-{os.getpid()}"
        self._kept[io, "open"](self._notes / f".{name}", "w").write(json.dumps(value))
        self._kept[os, "rename"](self._notes / f".{name}", self._notes / name)

    def _renaming(self, rename):
        def renamed(source, target, **places):
            made, old = os.path.abspath(target), None
            if os.path.isfile(made) and not os.path.islink(made):
                old = str(self._notes / f".old-{os.getpid()}-{next(self._numbers):06d}")
                shutil.copyfile(made, old)
            self._note(made, old)
            return rename(source, target, **places)

        return renamed

    def _making(self, make):
        def made(path, *arguments, **places):
            self._seen(os.path.dirname(os.path.abspath(path)))
            # One at a time: only who makes it notes it.
            with self._kept[io, "open"](self._notes / ".lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with contextlib.suppress(FileNotFoundError):
                    self._kept[os, "lstat"](path)
                    return make(path, *arguments, **places)  # refused: it is there
                self._note(os.path.abspath(path))
                return make(path, *arguments, **places)

        return made

    # The side that reads.

    def _seen(self, path):
        """The path of what this process still sees under a name. Raises FileNotFoundError."""
        if not isinstance(path, (str, os.PathLike)) or str(path).startswith("/proc"):
            return path
        wanted = os.path.abspath(path)
        if wanted.startswith(str(self._notes)):
            return path
        own, replaced = f"-{os.getpid()}", set()
        for name in sorted(self._kept[os, "listdir"](self._notes), reverse=True):
            if name.startswith("."):
                continue
            with self._kept[io, "open"](self._notes / name) as file:
                note = json.loads(file.read())
            made = note["made"]
            # Of a file that was replaced again and again the last time counts.
            is_meant = made not in replaced and (wanted == made or wanted.startswith(made + os.sep))
            replaced |= {made} if note["old"] is not None else set()
            if not is_meant or name.endswith(own):
                continue
            if time.monotonic() < self._asked.setdefault(name, time.monotonic()) + self._lag:
                if note["old"] is not None:
                    return note["old"]
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return path

    def _looking(self, look):
        def looked(path, *arguments, **keywords):
            return look(self._seen(path), *arguments, **keywords)

        return looked

    def _is_seen(self, folder, name):
        with contextlib.suppress(FileNotFoundError):
            self._seen(os.path.join(folder, name))
            return True
        return False

    def _listing(self, list_names):
        def listed(path="."):
            return [name for name in list_names(self._seen(path)) if self._is_seen(path, name)]

        return listed

    def _scanning(self, scan):
        def scanned(path="."):
            if not isinstance(path, (str, os.PathLike)):
                return scan(path)
            with scan(self._seen(path)) as entries:
                return _Entries(entry for entry in entries if self._is_seen(path, entry.name))

        return scanned


class _Entries:
    """What os.scandir gives: an iterator and a context."""

    def __init__(self, entries):
        self._entries = iter(list(entries))

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._entries)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def close(self):
        pass
