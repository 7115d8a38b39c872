"""The tokenizer that a data set was prepared with."""

from pathlib import Path

from longmix.data_prep.errors import UserError
from longmix.data_prep.files import sha256_of_folder
from longmix.data_prep.manifest import Manifest
from longmix.data_prep.remote import RemoteFolder, is_remote

from ..settings.sections import CacheSection
from .shard_cache import ShardCache


def tokenizer_folder(data: str, manifest: Manifest, cache: CacheSection | None = None) -> Path | None:
    """The folder of a data set's tokenizer, of a remote one a copy of it; None without one.

    Raises:
        UserError: it is missing, or not the one that the manifest was written with.
    """
    if manifest.tokenizer is None:
        return None
    path, sha256 = manifest.tokenizer["path"], manifest.tokenizer["sha256"]
    if is_remote(data):
        return ShardCache(cache or CacheSection()).tokenizer(RemoteFolder(data), path, sha256)
    folder = Path(data) / path
    if not folder.is_dir():
        raise UserError(f"{folder}, the tokenizer of {data}, does not exist: copy the data set again, with it")
    try:
        found = sha256_of_folder(folder)
    except OSError as error:
        raise UserError(f"{folder}, the tokenizer of {data}, cannot be read: {error}") from None
    if found != sha256:
        raise UserError(
            f"{folder} is not the tokenizer that {data} was prepared with: its files differ from what the manifest says"
        )
    return folder
