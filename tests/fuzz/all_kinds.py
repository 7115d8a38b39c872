"""The kinds of cases, by name: each makes an attack in a workshop."""

from .kinds import (
    arguments,
    checkpoints,
    environments,
    glue,
    manifests,
    models,
    outputs,
    reports,
    run_files,
    shards,
    sources,
    state_files,
    tokenizers,
)

KINDS = {
    "run-files": run_files.make,
    "shards": shards.make,
    "manifests": manifests.make,
    "checkpoints": checkpoints.make,
    "models": models.make,
    "tokenizers": tokenizers.make,
    "glue": glue.make,
    "sources": sources.make,
    "state-files": state_files.make,
    "reports": reports.make,
    "environments": environments.make,
    "outputs": outputs.make,
    "arguments": arguments.make,
}
