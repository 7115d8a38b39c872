"""Every shipped run file, fragment and DeepSpeed file trains two tiny steps; those of tasks in test_task_configs."""

from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModel

from longmix.data_prep.tasks.probe import ProbeSettings, prepare_probe
from longmix.modeling import MODEL_TYPES
from longmix.trainer.models.field_check import field_mistakes
from longmix.trainer.models.sizes import count_parameters
from longmix.trainer.run import loop
from longmix.trainer.settings import configuration, reading, run_file

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
COMPLETE = sorted(CONFIGS.glob("*.yaml"))
MODELS = sorted(CONFIGS.glob("model/*.yaml"))
FRAGMENTS = [*MODELS, CONFIGS / "tasks" / "mlm.yaml"]
# Tasks, the rows that they compare, and the papers' own recipes: test_task_configs trains them.
TASKS = [path for name in ("tasks", "mixer", "papers") for path in CONFIGS.glob(f"{name}/**/*.yaml")]
DEEPSPEED = sorted(CONFIGS.glob("deepspeed/*.json"))

# What is cut down so that a model of any size takes two steps in seconds.
SHORT = {
    "model.num_hidden_layers": 1,
    "batch.samples": 4,
    "batch.micro_batch": 2,
    "optim.max_steps": 2,
    "optim.warmup_steps": 1,
    "eval.samples": 4,
    "log.every_steps": 1,
    "log.tensorboard": False,
}


def name_of(path):
    return path.relative_to(CONFIGS).as_posix()


def train_two_steps(paths, folder, world, read_metrics, **changes):
    overrides = [f"{key}={yaml.safe_dump(value).splitlines()[0]}" for key, value in {**SHORT, **changes}.items()]
    checked = reading.load([str(path) for path in paths], [f"run.dir={folder}", *overrides], field_mistakes)
    assert loop.train(checked, world).code == 0
    assert [record["step"] for record in read_metrics(folder, "train")] == [1, 2]
    assert (folder / "model" / "model.safetensors").is_file()
    return checked


def test_every_file_is_of_a_known_kind():
    assert {*COMPLETE, *FRAGMENTS, *TASKS, *DEEPSPEED} == {
        path for path in CONFIGS.rglob("*") if path.suffix in (".yaml", ".json")
    }
    assert COMPLETE and FRAGMENTS
    assert [path.stem for path in DEEPSPEED] == list(configuration.SHIPPED_DEEPSPEED)


@pytest.fixture(scope="module")
def data_of(data, tmp_path_factory):
    """data_of(objective) -> a folder with `train` and `validation` for it."""
    probe = tmp_path_factory.mktemp("probe")
    prepare_probe(ProbeSettings("copy", 4, samples=40), probe)
    return {"mlm": data, "token_classification": probe}.__getitem__


@pytest.mark.parametrize("path", COMPLETE, ids=name_of)
def test_a_complete_run_file_trains(path, tmp_path, data_of, world, read_metrics):
    data = data_of(reading.load([str(path)], []).objective.name)
    train_two_steps(
        [path],
        tmp_path / "run",
        world,
        read_metrics,
        **{"data.train": str(data / "train"), "data.eval": str(data / "validation"), "deepspeed": None},
    )


def fragments():
    """All; by default each mixer in one of its sizes, and each size with two mixers."""
    parameters = []
    for number, path in enumerate(FRAGMENTS):
        # The three sizes of each mixer follow each other.
        is_left_out = path in MODELS and number // 3 % 3 != number % 3
        parameters.append(pytest.param(path, id=name_of(path), marks=[pytest.mark.full] if is_left_out else []))
    return parameters


@pytest.mark.parametrize("path", fragments())
def test_a_fragment_on_a_small_task_trains(path, tmp_path, data, world, read_metrics, run_values, write_run_file):
    small = write_run_file(tmp_path / "small.yaml", run_values(tmp_path / "run"))
    checked = train_two_steps([small, path], tmp_path / "run", world, read_metrics, deepspeed=None)
    fragment = configuration.flatten(run_file.parse_yaml(path.read_text(), str(path)))
    taken = configuration.flatten(checked.to_dict())
    kept = {key: value for key, value in fragment.items() if key not in SHORT and key != "deepspeed"}
    assert {key: taken[key] for key in kept} == kept


@pytest.mark.parametrize("path", DEEPSPEED, ids=name_of)
def test_a_deepspeed_file_trains(path, tmp_path, world, read_metrics, run_values, write_run_file):
    small = write_run_file(tmp_path / "small.yaml", run_values(tmp_path / "run"))
    train_two_steps([small], tmp_path / "run", world, read_metrics, deepspeed=path.stem)


def parameters(model_type, size):
    """Those outside the embeddings, of the encoder in configs/model."""
    fields = yaml.safe_load((CONFIGS / "model" / f"{model_type}_{size}.yaml").read_text())["model"]
    with torch.device("meta"):
        return count_parameters(AutoModel.from_config(AutoConfig.for_model(**fields)))[1]


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_the_mixers_of_one_size_have_as_many_parameters(size):
    wanted = parameters("transformer", size)
    for model_type in MODEL_TYPES:
        assert 0.9 < parameters(model_type, size) / wanted < 1.1, model_type
    assert {path.stem for path in (CONFIGS / "model").glob(f"*_{size}.yaml")} == {f"{t}_{size}" for t in MODEL_TYPES}
