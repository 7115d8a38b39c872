"""What a data set holds, as a hash."""

import dataclasses
import hashlib
import json

from longmix.data_prep.manifest import Manifest


def fingerprint(manifest: Manifest) -> str:
    """Of what a data set holds: the same whenever and wherever it lies, and however it was made."""
    values = dataclasses.asdict(manifest)
    values["tokenizer"] = (manifest.tokenizer or {}).get("sha256")
    for name in ("report", "words"):  # how it was made, not what it is
        del values[name]
    for name in ("series", "tolerance", "trained_places"):
        if values[name] is None:
            del values[name]  # as before there was such a field: checkpoints tell of data without it
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
