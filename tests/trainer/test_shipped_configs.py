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
from longmix.trainer.run.setup import prepare
from longmix.trainer.settings import configuration, reading, run_file

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
COMPLETE = sorted(CONFIGS.glob("*.yaml"))
MODELS = sorted(CONFIGS.glob("model/*.yaml"))
RECIPES = sorted(CONFIGS.glob("recipes/*.yaml"))
FRAGMENTS = [*MODELS, CONFIGS / "tasks" / "pretraining.yaml", CONFIGS / "tasks" / "mlm.yaml"]
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


@pytest.mark.parametrize("path", [*COMPLETE, *RECIPES, *TASKS], ids=name_of)
def test_a_short_trial_of_any_file_needs_no_other_warm_up(path):
    settings = run_file.read_settings([str(path)], []).values.get("optim", {})
    assert settings.get("warmup_steps") in (None, 0), "warmup_share follows optim.max_steps"


def test_every_file_is_of_a_known_kind():
    assert {*COMPLETE, *FRAGMENTS, *RECIPES, *TASKS, *DEEPSPEED} == {
        path for path in CONFIGS.rglob("*") if path.suffix in (".yaml", ".json")
    }
    assert COMPLETE and FRAGMENTS
    assert [path.stem for path in DEEPSPEED] == list(configuration.SHIPPED_DEEPSPEED)


def test_flt_has_exact_neighbours_but_not_where_it_is_the_papers():
    reaches = {}
    for path in (*MODELS, *TASKS):
        model = run_file.read_settings([str(path)], []).values.get("model", {})
        if model.get("model_type") == "flt":
            reaches.setdefault(path.parent.name, []).append(model["exact_reach"])
    assert reaches == {"model": [4] * 3, "mixer": [0] * 2, "papers": [0] * 5}


@pytest.fixture(scope="module")
def data_of(data, tmp_path_factory):
    """data_of(objective) -> a folder with `train` and `validation` for it."""
    probe = tmp_path_factory.mktemp("probe")
    prepare_probe(ProbeSettings("copy", 4, samples=40), probe)
    return {"mlm": data, "token_classification": probe}.__getitem__


def complete():
    """All; by default those of no single mixer, and the one that takes least."""
    mixers = {path for path in COMPLETE if path.stem.startswith("pretrain_")}
    left_out = mixers - {CONFIGS / "pretrain_paramixer.yaml"}
    return [
        pytest.param(path, id=name_of(path), marks=[pytest.mark.full] if path in left_out else []) for path in COMPLETE
    ]


@pytest.mark.parametrize("path", complete())
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
    """All; by default each mixer in one of its sizes, and each size with two mixers: the cheapest such choice."""
    parameters = []
    for number, path in enumerate(FRAGMENTS):
        # The three sizes of each mixer follow each other.
        is_left_out = path in MODELS and (number // 3 + 2) % 3 != number % 3
        parameters.append(pytest.param(path, id=name_of(path), marks=[pytest.mark.full] if is_left_out else []))
    return parameters


@pytest.mark.parametrize("path", fragments())
def test_a_fragment_on_a_small_task_trains(path, tmp_path, data, world, read_metrics, run_values, write_run_file):
    small = write_run_file(tmp_path / "small.yaml", run_values(tmp_path / "run"))
    checked = train_two_steps([small, path], tmp_path / "run", world, read_metrics, deepspeed=None)
    fragment = configuration.flatten(run_file.read_settings([str(path)], []).values)
    taken = configuration.flatten(checked.to_dict())
    replaced = {*SHORT, "optim.warmup_share", "deepspeed"}
    kept = {key: value for key, value in fragment.items() if key not in replaced}
    assert {key: taken[key] for key in kept} == kept


def recipes_and_models(is_covering):
    """All pairs; by default those for which `is_covering`(path, model_type)."""
    return [
        pytest.param(
            *(path, model_type),
            id=f"{path.stem}-{model_type}",
            marks=[] if is_covering(path, model_type) else [pytest.mark.full],
        )
        for path in RECIPES
        for model_type in MODEL_TYPES
    ]


def is_of_the_small_recipe_or_one_model(path, model_type):
    return path.stem == "small_budget" or model_type == "paramixer"


@pytest.mark.parametrize(("path", "model_type"), recipes_and_models(is_of_the_small_recipe_or_one_model))
def test_a_recipe_is_valid_for_every_model_and_length(path, model_type, data, tmp_path):
    """As it is used: the recipe, a model, data; and with few steps, to which its warm-up fits."""
    rows = [f"data.train={data / 'train'}", f"data.eval={data / 'validation'}", f"run.dir={tmp_path / 'run'}"]
    files = [str(path), str(CONFIGS / "model" / f"{model_type}_tiny.yaml")]
    checked = reading.load(files, rows, field_mistakes)
    prepared = prepare(checked, 1, torch.device("cpu"))
    assert prepared.configuration.objective.name == "mlm"
    assert not {"max_position_embeddings", "vocab_size"} & set(
        run_file.parse_yaml(path.read_text(), str(path)).get("model", {})
    )
    if checked.optim.warmup_share is not None:
        for steps in (1, 10, 1000):
            short = reading.load(files, [*rows, f"optim.max_steps={steps}"], field_mistakes).optim
            assert short.steps_of_warmup <= steps and short.steps_before_fall <= steps


@pytest.mark.parametrize(
    ("path", "model_type"),
    recipes_and_models(lambda path, model_type: (path.stem, model_type) == ("small_budget", "paramixer")),
)
def test_a_recipe_trains(path, model_type, tmp_path, data, world, read_metrics):
    rows = {"data.train": str(data / "train"), "data.eval": str(data / "validation"), "deepspeed": None}
    checked = train_two_steps(
        [path, CONFIGS / "model" / f"{model_type}_tiny.yaml"], tmp_path / "run", world, read_metrics, **rows
    )
    assert checked.eval.mask_probability is None  # 0.15, so that recipes compare
    first, second = (record["lr"] for record in read_metrics(tmp_path / "run", "train"))
    assert first == checked.optim.lr and 0 < second <= first


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
