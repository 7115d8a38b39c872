"""The data sets of a run, where they are still to be found and still those that it read."""

from pathlib import Path

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest, fingerprint

from ..many_runs.read import Run


def find_data(run: Run, key: str) -> tuple[Path, Manifest]:
    """The folder that `key` of the run's config.yaml names, and its manifest.

    Raises:
        UserError: it is not one folder, is gone, or holds other data than those of the run.
    """
    named = run.value(key)
    noted = run.fingerprints.get(key) if isinstance(run.fingerprints, dict) else None
    if not isinstance(named, str):
        raise UserError(f"{key} names no folder")
    reason = f"{key}, {named}, is not to be found"
    # The run file's paths are relative to where the run was begun, which need not be here.
    for folder in dict.fromkeys(place / named for place in (run.begun_in, Path()) if place is not None):
        try:
            manifest = Manifest.load(folder)
            if noted is None or noted == [fingerprint(manifest)]:
                return folder, manifest
            reason = f"{key}, {named}, holds other data than those of the run"
        except (UserError, OSError, ValueError, KeyError, TypeError):
            # The data may have been moved since.
            continue
    raise UserError(reason)
