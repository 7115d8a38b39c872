"""Stage 4: models of the same size pre-trained on the same tokens, and fine-tuned on GLUE's small tasks."""

import shutil
import subprocess
import sys
from pathlib import Path

import commands
from gpu_kit.processes import NotHereError, end_with_parent
from gpu_kit.records import DONE, Measurement, Records
from gpu_kit.setting import CONFIGS, Setting

from longmix.data_prep.manifest import Manifest
from longmix.data_prep.tasks.embedded import write_embedded
from longmix.modeling import MODEL_TYPES

# Of the time of the stage, what pre-training may take.
PRETRAINING = 0.7
# Seconds that a model's two commands take before they compute, and all that a model may take: what the stage cuts off
# goes on at its checkpoint.
STARTING, LIMIT = 30.0, 3600.0
# Tokens per second where stage 3 has not measured them: of a GPU, and of a CPU.
SLOW, SLOW_CPU = 20000.0, 500.0
SAMPLES = 64
SMALL_TASKS = ("cola", "mrpc", "rte", "stsb", "wnli")


def plan(setting: Setting, records: Records, seconds: float) -> list[Measurement]:
    """Every model, for an equal number of tokens: as many as the time holds at the slowest one's speed. All are
    pre-trained before the first is fine-tuned: should the time run out, there is a loss of each."""
    speeds = [
        row["answer"]["tokens_per_second"]
        for key, row in records.newest().items()
        if key.startswith("3/speed/") and row["status"] == DONE
    ]
    # Stage 3 has timed models of twice this one's size, or more.
    speed = min(speeds, default=SLOW if setting.device == "cuda" else SLOW_CPU)
    each = max(1.0, seconds / len(MODEL_TYPES))
    earlier = [row["answer"] for row in records.rows if row["key"] == "4/budget"]
    # Decided once, so that those of a later call had the same.
    tokens = earlier[0] if earlier else int(PRETRAINING * max(1.0, each - STARTING) * speed)
    if not earlier:
        records.append("4/budget", DONE, answer=tokens)
    made = [Measurement("4/corpus", "gpu_kit.learning:corpus", seconds=300, alone=False)]
    models = ("transformer", *(name for name in MODEL_TYPES if name != "transformer"))
    made += [
        Measurement(f"4/learning/{model}", "gpu_kit.learning:learn", {"model": model, "tokens": tokens}, seconds=LIMIT)
        for model in models
    ]
    return made + [
        Measurement(f"4/tasks/{model}", "gpu_kit.learning:fine_tune", {"model": model}, seconds=LIMIT)
        for model in models
    ]


def corpus(setting: Setting) -> dict[str, object]:
    """The corpus of the pack, or one made of Python's documentation."""
    if setting.pack is not None and (setting.pack / "corpus" / "train").is_dir():
        return {"corpus": "the pack's", "folder": str(setting.pack / "corpus"), "glue": str(setting.pack / "glue")}
    made = write_embedded(setting.work / "embedded")
    data = setting.work / "corpus"
    if not all((data / split / "manifest.json").is_file() for split in ("train", "validation")):
        _longmix(
            *("prepare", "text", "--source", made.text, "--output", data, "--vocab-size", "8000"),
            *("--sequence-length", "128", "--packing", "one-per-row"),
        )
    return {"corpus": "the documentation that Python carries", "folder": str(data), "glue": str(made.glue)}


def learn(setting: Setting, model: str, tokens: int) -> dict[str, object]:
    """Pre-train on `tokens`: held-out loss before and after."""
    about = corpus(setting)
    data = Path(about["folder"])
    manifest = Manifest.load(data / "train")
    steps = max(2, tokens // (SAMPLES * manifest.sequence_length))
    run = setting.work / "learning" / model
    _longmix(
        *("train", CONFIGS / "model" / f"{model}_{'tiny' if setting.device == 'cpu' else 'small'}.yaml"),
        *(CONFIGS / "tasks" / "mlm.yaml", f"data.train={data / 'train'}", f"data.eval={data / 'validation'}"),
        *(f"run.dir={run}", f"deepspeed={setting.engines[0]}", f"batch.samples={SAMPLES}", "batch.micro_batch=16"),
        *(f"optim.max_steps={steps}", f"optim.warmup_steps={max(1, steps // 10)}", "log.tensorboard=false"),
        *(f"eval.every_steps={steps}", f"checkpoint.every_steps={max(1, steps // 2)}", "checkpoint.keep=1"),
        *("--processes", "1"),
    )
    before, after = (commands.records(run, "eval")[index] for index in (0, -1))
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return {
        "corpus": about["corpus"],
        "steps": steps,
        "tokens": steps * SAMPLES * manifest.sequence_length,
        "loss": [before["loss"], after["loss"]],
    }


def fine_tune(setting: Setting, model: str) -> dict[str, object]:
    """Fine-tune what `learn` has made on those of SMALL_TASKS that there are: one epoch, one seed.

    Raises:
        NotHereError: no task is there.
        RuntimeError: the model has not been pre-trained, or cannot be fine-tuned.
    """
    from longmix.trainer.finetune.results import Results
    from longmix.trainer.finetune.tasks import TASKS

    trained, glue = setting.work / "learning" / model / "model", Path(corpus(setting)["glue"])
    results = setting.work / "learning" / f"{model}-glue"
    if not trained.is_dir():
        raise RuntimeError("it has not been pre-trained")
    tasks = [name for name in SMALL_TASKS if (glue / TASKS[name].folder).is_dir()]
    if not tasks:
        raise NotHereError("there are no tasks")
    _longmix(
        *("finetune", "--model", trained, "--data", glue, "--output", results, "--seeds", "1", "--epochs", "1"),
        *(word for name in tasks for word in ("--task", name)),
    )
    return {"scores": {task.task: task.score for task in Results.load(results).tasks}}


def _longmix(*words: object) -> None:
    """Run a command of longmix; RuntimeError where it fails."""
    ended = subprocess.run([sys.executable, "-m", "longmix.trainer", *map(str, words)], preexec_fn=end_with_parent)
    if ended.returncode != 0:
        raise RuntimeError(f"longmix {words[0]} ended with {ended.returncode}")
