"""Run files: every mistake at once with its file, key and nearest name; and what a run folder keeps of them."""

import numpy as np
import pytest
import torch

from longmix.data_prep.errors import UserError
from longmix.data_prep.manifest import Manifest
from longmix.trainer.models.field_check import field_mistakes, quick_field_mistakes
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.run.folder import refuse_changes, resolved, write_configuration
from longmix.trainer.settings import reading
from longmix.trainer.settings.objectives import OBJECTIVES
from longmix.trainer.settings.sections import ObjectiveSection


def test_defaults_are_those_of_the_documented_run_file(small):
    values = reading.load([small], [], field_mistakes).to_dict()
    assert values["batch"] == {"samples": 256, "micro_batch": 16, "group_by_length": False}
    assert values["optim"] == {
        "name": "adamw",
        "lr": 1e-3,
        "betas": [0.9, 0.98],
        "eps": 1e-6,
        "momentum": 0.95,
        "update_rms": 0.2,
        "weight_decay": 0.01,
        "no_decay": ["bias", "norm"],
        "lr_factors": {},
        "schedule": "linear",
        "decay_share": None,
        "warmup_steps": 100,
        "warmup_share": None,
        "max_steps": 1000,
        "grad_clip": 1.0,
        "skip_spikes": False,
    }
    assert values["run"] == {
        "dir": "runs/a",
        "seed": 0,
        "gradient_checkpointing": False,
        "compile": False,
        "deterministic": False,
        "threads": None,
        "max_hours": None,
        "stop_at_step": None,
        "hang_minutes": 30.0,
        "check_every": 1000,
        "allow_changes": [],
    }
    assert values["objective"] == {
        "name": "mlm",
        "mask_probability": 0.15,
        "whole_word": False,
        "input_length": None,
        "horizon": None,
    }
    assert values["checkpoint"] == {
        "every_steps": 200,
        "keep": 3,
        "keep_every": None,
        "best": None,
        "asynchronous": "auto",
        "max_failures": 3,
    }
    assert (values["precision"], values["deepspeed"]) == ("auto", "zero1")
    assert values["eval"] == {"every_steps": 200, "samples": 1000, "mask_probability": None}
    assert values["log"] == {"every_steps": 10, "tensorboard": True, "wandb": None}


def test_all_mistakes_at_once_with_file_key_and_nearest_name(write, small, mistakes_of):
    wrong = write(
        "wrong.yaml",
        """\
        optimizer: {lr: 1}
        optim: {lrr: 1e-3, max_steps: 10, warmup_steps: 20, betas: [0.9, 1.0], schedule: cosin}
        batch: {samples: 10, micro_batch: 4}
        objective: {mask_probability: 1.5}
        precision: fp8
        log: {tensorboard: 1}
        """,
    )
    text = mistakes_of([small, wrong], "eval.every_steps=0")
    for expected in (
        f"{wrong}: optimizer is not a key of a run file; did you mean optim?",
        f"{wrong}: optim.lrr is not a key of a run file; did you mean optim.lr?",
        f"{wrong}: optim.warmup_steps is 20, more than optim.max_steps 10",
        f"{wrong}: optim.betas is [0.9, 1.0], but takes two numbers in [0, 1)",
        f"{wrong}: optim.schedule is 'cosin', but takes linear or cosine or constant or inverse_sqrt or wsd; "
        "did you mean cosine?",
        f"{wrong}: batch.samples is 10, which batch.micro_batch 4 does not divide; nearest: 8, or batch.micro_batch=2",
        f"{wrong}: objective.mask_probability is 1.5, but must lie between 0 and 1",
        f"{wrong}: precision is 'fp8', but takes auto or fp32 or bf16 or fp16",
        f"{wrong}: log.tensorboard is 1, but takes true or false",
        "command line: eval.every_steps is 0, but must be at least 1",
    ):
        assert expected in text


def test_a_missing_key_does_not_hide_other_mistakes(write, mistakes_of):
    path = write("a.yaml", "optim: {lr: -1, lrr: 2}\nmodel: {model_type: transformer}\n")
    text = mistakes_of(path)
    assert "run.dir is missing" in text and "data.train is missing" in text
    assert "optim.lr is -1" in text and "optim.lrr is not a key" in text


def test_mistyped_model_fields_are_told_with_the_other_mistakes(write, small, mistakes_of):
    path = write("b.yaml", "model: {hiden_size: 16}\noptim: {lrr: 1}\n")
    text = mistakes_of([small, path])
    assert f"{path}: model.hiden_size is no field of TransformerConfig; did you mean hidden_size?" in text
    labels = mistakes_of([small], "model.num_labels=7")
    assert "model.num_labels cannot be set" in labels and "comes from the data" in labels and "mean" not in labels
    assert "optim.lrr is not a key" in text


def test_a_launcher_leaves_the_model_to_its_workers_unless_something_is_wrong(write, small):
    path = write("b.yaml", "model: {model_type: bert, hiden_size: 16}\n")
    assert reading.load([small, path], [], quick_field_mistakes).model["hiden_size"] == 16
    with pytest.raises(UserError, match=r"model\.hiden_size is no field of FLTConfig"):
        reading.load([small, path], ["model.model_type=flt"], quick_field_mistakes)
    with pytest.raises(UserError, match=r"model\.hiden_size is no field.*|optim\.lrr.*") as caught:
        reading.load([small, path], ["optim.lrr=1"], quick_field_mistakes)
    assert "model.hiden_size" in str(caught.value) and "optim.lrr" in str(caught.value)


def test_an_unknown_model_type_names_the_nearest(small, mistakes_of):
    text = mistakes_of(small, "model.model_type=s3atention", "optim.lr=0")
    assert "model.model_type 's3atention' is unknown; did you mean s3attention?" in text
    assert "optim.lr is 0.0, but must be a positive number" in text


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("run.seed=-1", "run.seed is -1, but must be at least 0"),
        ("run.seed=1.5", "run.seed is 1.5, but takes a whole number"),
        ("run.seed=true", "run.seed is True, but takes a whole number"),
        ("run.dir=", "run.dir is None, but takes a text"),
        ("run.dir=''", "run.dir is empty; name a folder"),
        ("run.dir=s3://bucket/run", "run.dir is 's3://bucket/run', a URL, but a run is written to a folder"),
        ('run.dir="a\\0b"', "run.dir is 'a\\x00b', which holds a control character or no text"),
        ('run.dir="a\\nb"', "run.dir is 'a\\nb', which holds a control character or no text"),
        ("run.dir=a\udc80b", "run.dir: not valid YAML: unacceptable character"),
        ("run.dir=" + "n" * 300, "and is too long: at most 255 bytes between two slashes"),
        ("run.dir=" + "ab/" * 2000, "and is too long"),
        ("run.hang_minutes=1e7", "run.hang_minutes is 10000000.0, but must be at most 10^6"),
        ("run.hang_minutes=.inf", "run.hang_minutes is inf, but must be a positive number"),
        (
            "optim.lerning_rate=1",
            "command line: optim.lerning_rate is not a key of a run file; did you mean optim.lr?",
        ),
        ("optim.foo=1", "optim.foo is not a key of a run file; allowed: name, lr, betas, eps, momentum, update_rms"),
        ("optim=", "optim is None, but takes a map with: name, lr"),
        ("optim.lr=fast", "optim.lr is 'fast', but takes a number"),
        ("optim.lr=.nan", "optim.lr is nan, but must be a positive number"),
        ("optim.grad_clip=0", "optim.grad_clip is 0.0, but must be positive, or null"),
        ("optim.lr_factors={layers.0: 0}", "optim.lr_factors.layers.0 is 0.0, but must be positive"),
        ("optim.lr_factors={0: 2}", "optim.lr_factors has the key 0, but takes parts of parameter names"),
        ("optim.lr_factors={'': 2}", "optim.lr_factors has the key '', but takes parts of parameter names"),
        ("optim.lr_factors.layers.0=2", "a word with dots takes braces: optim.lr_factors={layers.0: 2}"),
        ("data.partitions=0", "data.partitions is 0, but must be auto or 1 to 2147483647"),
        ("data.order=3", "data.order is 3, but must be null, 1 or 2"),
        ("data.train=[]", "data.train is an empty list"),
        ("data.train=[{path: a, weight: 0}]", "data.train[0].weight is 0.0, but must be positive"),
        ("data.train=[{pth: a}]", "data.train[0].pth is not a key of a run file; did you mean data.train[0].path?"),
        ("checkpoint.best={metric: loss, mode: min}", "checkpoint.best needs data.eval"),
        ("checkpoint.best={metric: loss, mode: lowest}", "checkpoint.best.mode is 'lowest', but takes min or max"),
        ("data.test=d/test", "data.test is read with the best checkpoint's model: set checkpoint.best"),
        ("deepspeed=zero4", "deepspeed is 'zero4': neither zero0, zero1, zero2, zero3, null, nor an existing JSON"),
        (
            "run.allow_changes=[optim.lrr]",
            "run.allow_changes names 'optim.lrr', which is no key; did you mean optim.lr?",
        ),
        ("optim.lr.x=1", "optim.lr"),
        ("optim.lr=" + "9" * 400, "but takes a number"),
        ("optim.max_steps=" + "9" * 30, "but must be below 2^63"),
        ("run.seed=" + "9" * 5000, "command line, run.seed: a value cannot be read"),
        ("model.from=", "model.from is None, but takes a text: a model folder"),
        ("model.from=3", "model.from is 3, but takes a text: a model folder"),
        ("model.dtype=float16", "model.dtype has no place in a run file (precision decides it); remove it"),
    ],
)
def test_values_out_of_range(small, mistakes_of, override, expected):
    assert expected in mistakes_of(small, override)


@pytest.mark.parametrize(
    ("overrides", "mistake"),
    [
        (["data.cache={dir: /tmp, max_bytes: 0}"], "data.cache.max_bytes is 0, but must be at least 1"),
        (["data.cache={dir: ''}"], "data.cache.dir is empty"),
        (["objective.name=mml", "data.eval=d", "checkpoint.best={metric: accuracy, mode: max}"], "objective.name is"),
        (["optim.max_steps=many", "optim.warmup_steps=2000"], "optim.max_steps is 'many'"),
        (["optim.max_steps=0", "optim.warmup_steps=2000"], "optim.max_steps is 0, but must be at least 1"),
        (["optim.name=lamb", "optim.momentum=0.9", "optim.update_rms=0.5"], "optim.name is 'lamb', but takes adamw or"),
        (["objective.name=clmm", "eval.mask_probability=0.2"], "objective.name is 'clmm'"),
        (["objective.name=forecast", "objective.horizon=96"], "objective.name is 'forecast'"),
        (["objective=classification", "checkpoint.best={metric: accuracy, mode: max}", "data.eval=d"], "objective is"),
        (["data.eval=3", "checkpoint.best={metric: loss, mode: min}"], "data.eval is 3"),
        (["data.test=d", "data.eval=d", "checkpoint.best=loss"], "checkpoint.best is 'loss'"),
    ],
)
def test_one_mistake_is_told_once(small, mistakes_of, overrides, mistake):
    text = mistakes_of(small, *overrides)
    assert mistake in text and text.count("command line: ") == 1


def test_the_allowed_values_are_listed_once(small, mistakes_of):
    """Beside the types that a key takes only the nearest of its words is named."""
    assert mistakes_of(small, "optim.name=lamb").endswith("optim.name is 'lamb', but takes adamw or muon")
    assert "takes adamw or muon; did you mean muon?" in mistakes_of(small, "optim.name=moun")
    assert mistakes_of(small, "run.compile=yes please").endswith("but takes layer or true or false")


def test_the_metric_of_the_best_checkpoint_must_be_one_that_the_objective_has(small, mistakes_of):
    best = ["data.eval=d/validation", "checkpoint.best={metric: acuracy, mode: max}"]
    text = mistakes_of(small, "objective.name=classification", *best)
    assert "checkpoint.best.metric is 'acuracy', but an evaluation of objective classification gives: loss" in text


def test_the_figures_that_can_be_named_are_those_of_the_objectives():
    for name, row in OBJECTIVES.items():
        pair = name == "pair_classification"
        manifest = Manifest(
            split="a",
            split_rule="b",
            columns={
                **{column: {"dtype": "int32", "shape": [None]} for column in ("input_ids", "input_ids_b")[: 1 + pair]},
                "labels": {
                    "dtype": "float32" if name == "regression" else "int64",
                    "shape": [None] if name == "token_classification" else [],
                },
            },
            mask_token_id=1,
            vocab_size=9,
            series={"season": 7, "names": []},
            tolerance=0.5,
        )
        objective = make_objective(ObjectiveSection(name=name), 0, manifest, None)
        outputs = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
        if name == "forecasting":
            outputs = np.zeros((2, 4))  # two errors of each of two naive forecasts
        given = objective.figures(torch.ones(3), [outputs[:, 1:] if name == "regression" else outputs])
        # Naive forecasts stand beside them, but choose no checkpoint.
        told = {figure for figure in given if not figure.startswith(("last_value", "seasonal"))}
        assert told == {*row.figures, "items"}


def test_the_resolved_configuration_loads_back_equal_and_a_run_folder_stands_for_it(small, tmp_path):
    configuration = reading.load(
        [small],
        [
            *("optim.lr=3e-4", "data.train=[{path: a, weight: 2}, {path: ü}]", "deepspeed=null"),
            *("model.hidden_size=32", f"run.dir={tmp_path}"),
        ],
    )
    write_configuration(tmp_path, configuration)
    assert reading.load([str(tmp_path / "config.yaml")], [], field_mistakes) == configuration
    assert reading.load([str(tmp_path)], [], field_mistakes) == configuration
    assert reading.load([str(tmp_path)], ["optim.lr=1"], field_mistakes).optim.lr == 1.0
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert "provenance" in text and "torch:" in text and "git_commit" in text


def test_a_run_folder_refuses_another_configuration_unless_it_is_allowed(small, tmp_path):
    write_configuration(tmp_path, reading.load([small], []))

    def refused(*overrides):
        with pytest.raises(UserError) as caught:
            refuse_changes(tmp_path, reading.load([small], list(overrides)))
        return str(caught.value)

    text = refused("optim.lr=0.5", "batch.samples=512", "model.hidden_size=64")
    assert "optim.lr was 0.001 and is now 0.5" in text and "batch.samples was 256 and is now 512" in text
    assert "model.hidden_size was 768 and is now 64" in text
    assert "run.allow_changes=[batch.samples, model.hidden_size, optim.lr]" in text
    free = ["run.dir=elsewhere", "batch.micro_batch=8", "eval.samples=3", "checkpoint.keep=1", "log.every_steps=1"]
    refuse_changes(tmp_path, reading.load([small], free))
    refuse_changes(tmp_path, reading.load([small], ["optim.lr=0.5", "run.allow_changes=[optim.lr]"]))
    refuse_changes(tmp_path, reading.load([small], ["optim.lr=0.5", "run.allow_changes=[optim]"]))
    assert "optim.eps" in refused("optim.lr=0.5", "optim.eps=0.5", "run.allow_changes=[optim.lr]")


def test_a_schedule_that_every_step_so_far_had_is_the_same_run(small, tmp_path):
    def allowed(made, before, now):
        """Whether a run of `made` steps with the changes `before` goes on with `now`."""
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "checkpoints" / f"step-{made:08d}").mkdir(parents=True)
        write_configuration(folder, reading.load([small], [f"optim.{change}" for change in before]))
        try:
            refuse_changes(folder, reading.load([small], [f"optim.{change}" for change in now]))
        except UserError as error:
            assert "optim." in str(error) and "run.allow_changes=[optim." in str(error)
            return False
        return True

    wsd, longer = ["schedule=wsd", "max_steps=1000"], ["schedule=wsd", "max_steps=3000"]
    # The rate falls from step 801 on.
    assert allowed(800, wsd, longer) and not allowed(801, wsd, longer) and not allowed(1000, wsd, longer)
    assert allowed(800, longer, wsd) and not allowed(900, longer, wsd)
    assert allowed(900, wsd, [*wsd, "decay_share=0.2"]) and not allowed(900, wsd, [*wsd, "decay_share=0.3"])
    # A constant rate may come to fall, but a run that is done stays as it is.
    constant = ["schedule=constant", "max_steps=1000"]
    assert allowed(700, constant, wsd) and not allowed(1000, constant, ["schedule=constant", "max_steps=2000"])
    # Another warm-up is another run once it is under way, unless it has as many steps.
    share = ["warmup_share=0.1", "max_steps=1000"]
    assert allowed(500, share, ["warmup_steps=100"]) and not allowed(500, share, ["warmup_steps=120"])
    assert not allowed(150, ["schedule=wsd", *share], ["schedule=wsd", "warmup_share=0.1", "max_steps=3000"])
    # All other schedules fall from the first step after the warm-up on.
    assert not allowed(500, ["max_steps=1000"], ["max_steps=3000"])
    assert not allowed(0, ["lr=0.1"], ["lr=0.2"])


def test_a_refusal_names_the_warm_up_that_another_number_of_steps_needs(small, tmp_path):
    begun, longer = (["optim.schedule=wsd", "optim.warmup_share=0.1", f"optim.max_steps={n}"] for n in (1000, 3000))
    (tmp_path / "checkpoints" / "step-00000150").mkdir(parents=True)
    write_configuration(tmp_path, reading.load([small], begun))
    with pytest.raises(UserError, match=r"now 3000\. With the warm-up .*, optim\.warmup_steps=100, it may .*\. Choose"):
        refuse_changes(tmp_path, reading.load([small], longer))
    refuse_changes(tmp_path, reading.load([small], [*longer, "optim.warmup_share=null", "optim.warmup_steps=100"]))
    for hopeless in (["optim.lr=0.5", *longer], [*begun, "optim.max_steps=160"]):
        with pytest.raises(UserError, match=r"now [\d.]+\. Choose another run\.dir"):
            refuse_changes(tmp_path, reading.load([small], hopeless))


def test_another_optimizer_leaves_behind_what_the_former_alone_takes(write, mistakes_of):
    recipe = write(
        "muon.yaml",
        "{run: {dir: r}, data: {train: d}, model: {model_type: flt}, optim: {name: muon, momentum: 0.9, eps: 1e-9}}",
    )
    own = write("own.yaml", "optim: {name: adamw}")
    for optim in (reading.load([recipe], ["optim.name=adamw"]).optim, reading.load([recipe, own], []).optim):
        assert (optim.name, optim.momentum, optim.eps) == ("adamw", 0.95, 1e-9)
    again = write("again.yaml", "optim: {lr: 1e-4, name: muon}")
    assert reading.load([recipe, again], []).optim.momentum == 0.9
    text = mistakes_of([recipe], "optim.name=adamw", "optim.momentum=0.8")
    assert "optim.momentum is 0.8, but is for muon, and optim.name is adamw: leave it out, or undo it with " in text
    reading.load([recipe], ["optim.name=adamw", text.rpartition(" ")[2]])


def test_of_warm_ups_a_later_file_takes_the_place_of_an_earlier_one(small, write):
    share = write("share.yaml", "optim: {warmup_share: 0.06, max_steps: 50}")
    steps = write("steps.yaml", "optim: {warmup_steps: 7}")
    for order, expected in (([small, share, steps], (7, None)), ([small, steps, share], (None, 0.06))):
        optim = reading.load(order, []).optim
        assert (optim.warmup_steps, optim.warmup_share) == expected
    assert reading.load([small, share], ["optim.warmup_steps=1"]).optim.steps_of_warmup == 1
    assert reading.load([small, steps], ["optim.warmup_share=0.1", "optim.max_steps=50"]).optim.steps_of_warmup == 5


@pytest.mark.parametrize(("steps", "warmup"), [(1000, 100), (100, 100), (99, 9), (50, 5), (1, 0)])
def test_a_short_trial_does_not_trip_over_the_default_warm_up(small, steps, warmup):
    assert reading.load([small], [f"optim.max_steps={steps}"]).optim.steps_of_warmup == warmup


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("{warmup_steps: 5, warmup_share: 0.1}", "optim.warmup_share is 0.1, and optim.warmup_steps is 5: set one of"),
        ("{warmup_share: 6}", "optim.warmup_share is 6.0, but must lie between 0 and 1: a share of optim.max_steps"),
        (
            "{decay_share: 0.2}",
            "optim.decay_share is 0.2, but is for optim.schedule wsd, and this is linear: set it to",
        ),
        ("{schedule: wsd, decay_share: 0}", "optim.decay_share is 0.0, but must lie above 0 and at most at 1"),
        (
            "{schedule: wsd, decay_share: 0.5, warmup_share: 0.6}",
            "optim.decay_share is 0.5, but beside optim.warmup_share 0.6 no more than 0.4 of the steps are left",
        ),
        ("{warmup_steps: 2000}", "optim.warmup_steps is 2000, more than optim.max_steps 1000; optim.warmup_share, a"),
        (
            "{warmup_share: null, warmup_steps: 100, max_steps: 50}",
            "is 100, more than optim.max_steps 50; optim.warmup_share, a share from 0 to 1, fits any",
        ),
        ("{warmup_share: nan, max_steps: 50}", "optim.warmup_share "),
    ],
)
def test_mistakes_in_the_schedule_are_one_line_each(small, write, mistakes_of, values, told):
    text = mistakes_of([small, write("wrong.yaml", f"optim: {values}")])
    assert told in text and text.count("; ") == told.count("; ")


def test_what_evaluations_hide_is_for_masked_language_modelling(small, mistakes_of):
    assert "eval.mask_probability is 1.5, but must lie between 0 and 1" in mistakes_of(
        [small], "eval.mask_probability=1.5"
    )
    told = "eval.mask_probability is 0.2, but is for objective mlm, and this is clm: leave it out"
    assert told in mistakes_of([small], "objective.name=clm", "eval.mask_probability=0.2")


def test_what_evaluations_hide_is_resolved_once_and_kept(small, tmp_path):
    """0.15 in a new run; a run of an earlier version goes on at the share of its training."""
    asked = reading.load([small], ["objective.mask_probability=0.3"])
    assert asked.eval.mask_probability is None and resolved(tmp_path, asked).eval.mask_probability == 0.15
    write_configuration(tmp_path, asked)  # as earlier versions did: nothing is said of evaluations
    assert resolved(tmp_path, asked).eval.mask_probability == 0.3
    own = reading.load([small], ["objective.mask_probability=0.3", "eval.mask_probability=0.4"])
    assert resolved(tmp_path, own).eval.mask_probability == 0.4
    write_configuration(tmp_path, own)
    assert resolved(tmp_path, asked).eval.mask_probability == 0.4
    assert resolved(tmp_path, reading.load([small], ["objective.name=clm"])).eval.mask_probability is None


def test_checkpoints_without_the_configuration_of_their_run_are_refused(small, tmp_path):
    now = reading.load([small], [], field_mistakes)
    refuse_changes(tmp_path / "run", now)
    (tmp_path / "run" / "checkpoints" / "step-00000002").mkdir(parents=True)
    with pytest.raises(UserError, match=r"holds checkpoints, but no config\.yaml .* put it back"):
        refuse_changes(tmp_path / "run", now)
