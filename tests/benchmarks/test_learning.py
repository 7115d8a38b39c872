"""The learning benchmark: its commands fit every mixer, its control sees nothing, its figures are what they say."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForTokenClassification

from longmix.data_prep.tasks.probe import ProbeSettings, prepare_probe
from longmix.modeling import MODEL_TYPES
from longmix.trainer.run import setup
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.settings import reading


@pytest.fixture(scope="module")
def work(script, tmp_path_factory):
    """A work folder with small probes."""
    cases = script("learned.cases")
    folder = tmp_path_factory.mktemp("work")
    for (task, distance), recipe in cases.RECIPES.items():
        settings = ProbeSettings(task, distance, length=recipe.length, samples=8)
        prepare_probe(settings, cases.probe_folder(folder, task, distance))
        cases.write_control(folder, task, distance)
    return folder


def model_of(model_type, **fields):
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = AutoConfig.for_model(model_type, vocab_size=20, max_position_embeddings=24, **{**shape, **fields})
    return AutoModelForTokenClassification.from_config(config)


def test_every_case_is_a_run_that_its_mixer_takes(script, work):
    cases = script("learned.cases").probe_cases(work)
    assert len(cases) == 2 * 8 * (len(MODEL_TYPES) + 1) and len({case.folder for case in cases}) == len(cases)
    for case in cases:
        if case.distance != 64:
            continue
        paths = [text for text in case.arguments if "=" not in text]
        checked = reading.load(paths, [text for text in case.arguments if "=" in text])
        prepared = setup.prepare(checked, 1, torch.device("cpu"))
        recipe = script("learned.cases").RECIPES[case.table, 64]
        assert prepared.model_configuration.model_type == ("transformer" if case.row == "no mixing" else case.row)
        assert prepared.model_configuration.max_position_embeddings == recipe.length
        assert prepared.model_configuration.hidden_size == 64 and checked.optim.max_steps == recipe.steps
        assert case.variant == f"seed {checked.run.seed}"


def test_the_controls_samples_are_the_probes_with_every_token_alone(script, work):
    cases = script("learned.cases")
    probe = ShardedDataset(cases.probe_folder(work, "copy", 16) / "train")
    control = ShardedDataset(cases.control_folder(work, "copy", 16) / "train")
    assert control.manifest.num_labels == 16 and len(control) == len(probe) == 8
    for sample, alone in zip(probe.read(np.arange(8)), control.read(np.arange(8)), strict=True):
        assert (alone.pop("document_starts") == np.arange(len(sample["input_ids"]))).all()
        assert all((alone[name] == sample[name]).all() for name in sample) and set(alone) == set(sample)


def test_a_finished_case_is_not_run_again_unless_its_command_changes(script, tmp_path):
    case = script("learned.cases").Case("copy", "flt", 4, tmp_path, ("a", "b=1"))
    assert case.record() is None
    case.finish({"accuracy": 0.5})
    assert case.record()["accuracy"] == 0.5
    assert script("learned.cases").Case("copy", "flt", 4, tmp_path, ("a", "b=2")).record() is None


def test_influence_is_the_norm_of_the_gradient(script):
    influence = script("learned.influence")
    model = model_of("transformer")
    tokens = torch.randint(1, 20, (3, 12), generator=torch.Generator().manual_seed(1))
    places = torch.tensor([0, 5, 11])
    found = influence.squared_influence(model, {"input_ids": tokens}, places, torch.Generator().manual_seed(2))
    embedded = model.get_input_embeddings()(tokens).detach()
    direction = torch.randn(3, model.config.num_labels, generator=torch.Generator().manual_seed(2))
    jacobian = torch.autograd.functional.jacobian(lambda x: model(inputs_embeds=x).logits, embedded)
    for row, place in enumerate(places):
        gradient = torch.einsum("c,cnd->nd", direction[row], jacobian[row, place, :, row])
        np.testing.assert_allclose(found[row], gradient.square().sum(-1).detach().numpy(), rtol=1e-4)


def test_influence_by_distance_sees_what_a_model_mixes(script):
    influence = script("learned.influence")
    curve = influence.by_distance(model_of("transformer"), [1, 4], 12)
    assert curve[0] == 1 and curve[1] > 0 and curve[4] > 0
    alone = model_of("transformer", num_hidden_layers=1)
    with torch.no_grad():
        alone.encoder.layers[0].mixer.attention.output.weight.zero_()
    assert influence.by_distance(alone, [1, 4], 12) == {0: 1, 1: 0, 4: 0}


@pytest.mark.parametrize("model_type", ["transformer", "paramixer", "converter"])
def test_mixing_matrices_are_those_of_every_layer(script, model_type, tmp_path):
    module = script("mixing_matrix")
    batch = {"input_ids": torch.arange(1, 13)[None]}
    matrices = module.mixing_matrices(model_of(model_type), batch)
    assert len(matrices) == 2 and all(matrix.shape[-2:] == (12, 12) and (matrix >= 0).all() for matrix in matrices)
    if model_type == "converter":
        # Unitary: its rows have length 1.
        torch.testing.assert_close(matrices[1].square().sum(-1), torch.ones(matrices[1].shape[:-1]))
    picture = module.draw(matrices[0][0])
    heads = matrices[0].shape[1]
    assert picture.size == (heads * 264 + (heads - 1) * module.GAP, 264) and picture.getextrema()[1] == 255
    shifted = torch.diag(torch.ones(8), 4)[None]
    curve = module.by_distance(shifted)
    assert list(curve) == [0, 1, 2, 4, 8] and curve[4] == pytest.approx(0.5**0.5) and curve[1] == curve[8] == 0


def test_a_mixer_without_a_matrix_is_refused(script):
    with pytest.raises(ValueError, match="s3attention has no mixing matrix"):
        script("mixing_matrix").mixing_matrices(
            model_of("s3attention", segments=4, row_landmarks=4, column_landmarks=4), {}
        )


def test_tables_are_redrawn_between_their_marks(script, work, tmp_path):
    tables, cases = script("learned.tables"), script("learned.cases")
    made = {"made": {"date": "2026-01-02", "commit": "abc", "machine": "one core"}}
    curve = {"0": 1.0, "1": 0.75, "4": 0.25, "16": 0.5}
    for case in cases.probe_cases(work):
        if case.table == "copy" and case.distance == 16:
            case.folder.mkdir(parents=True)
            accuracy = {"flt": 0.5, "no mixing": 0.06}.get(case.row, 0.951) + (case.variant == "seed 1") / 50
            before = {key: value * (1 + (case.variant == "seed 1")) for key, value in curve.items()}
            case.finish({"accuracy": accuracy, "influence": curve, "influence_before": before, **made})
        elif case.table == "copy" and case.distance == 64 and case.variant == "seed 0":
            case.folder.mkdir(parents=True)  # one seed says nothing
            case.finish({"accuracy": 0.7, "influence": curve, "influence_before": curve, **made})
    marks = "".join(f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->\n" for name in ("probes", "influence", "other"))
    path = tmp_path / "learning.md"
    path.write_text(f"before\n{marks}after\n", encoding="utf-8")
    for _ in range(2):
        tables.redraw(path, work)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("<!-- other: begin -->\nold\n<!-- other: end -->\nafter\n")
    for line in (
        "| `flt` | – | *51.0 ± 1.4* | – |",
        "| `wavspa` | – | 96.1 ± 1.4 | – |",
        "| no mixing | – | 7.0 ± 1.4 | – |",
    ):
        assert text.count(line) == 1
    # The curve stands for every mixer before training, and for what missed after it.
    assert text.count("| untrained |  | 1.1e+00 | 3.8e-01 | 7.5e-01 |  |  |") == len(MODEL_TYPES)
    assert (
        text.count("|  | copy 16 | *51.0 ± 1.4* | 7.5e-01 | 2.5e-01 | 5.0e-01 |") == text.count("|  | copy 16 |") == 1
    )
    assert text.count("Measured 2026-01-02 on one core, commits abc.") == 1


def test_a_runs_influence_is_recorded_with_its_accuracy(script):
    values = {"accuracy": 0.5, "influence": {0: 1.0, 4: 0.25}, "influence_before": {0: 1.0, 4: 0.75}, "made": {}}
    assert list(script("learned.tables").recorded(values)) == [
        ("accuracy", 0.5, "fraction"),
        ("influence before training at 4", 0.75, "ratio"),
        ("influence at 4", 0.25, "ratio"),
    ]


def test_the_document_has_the_marks(script):
    cases = script("learned.cases")
    text = (cases.ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    for name in ("probes", "influence"):
        assert text.count(f"<!-- {name}: begin -->\n") == text.count(f"<!-- {name}: end -->") == 1
