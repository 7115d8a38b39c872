"""DeepSpeed's file: what `fill` makes of it, and which files are refused, with their keys."""

import json
import os
import re
import stat

import pytest

from longmix.data_prep.errors import UserError
from longmix.trainer.settings import deepspeed_file, reading


@pytest.fixture
def configured(run_values, tmp_path):
    """configured(deepspeed, **changes) -> RunConfiguration with lr 1e-3 and batches of 16 = 4 x 4."""

    def make(deepspeed, **changes):
        if isinstance(deepspeed, dict):
            path = tmp_path / "ds.json"
            path.write_text(json.dumps(deepspeed))
            deepspeed = str(path)
        return reading.from_dict(run_values(tmp_path, **{"deepspeed": deepspeed, **changes}), "test")

    return make


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_shipped_files_pass_and_are_filled(configured, stage):
    configuration = configured(f"zero{stage}", **{"optim.grad_clip": 0.5})
    deepspeed_file.check(configuration, "bf16", 2)
    values = deepspeed_file.fill(configuration, "bf16", 2, 8_000_000)
    assert "auto" not in json.dumps(values)
    assert deepspeed_file.stage_of(values) == stage
    assert values["train_batch_size"] == 16 and values["train_micro_batch_size_per_gpu"] == 4
    assert values["gradient_accumulation_steps"] == 2 and values["gradient_clipping"] == 0.5
    assert values["bf16"]["enabled"] is True and values["fp16"]["enabled"] is False
    assert values["timers"] == {"throughput": {"enabled": False}}  # it would wait for the GPU twice in each step
    if stage:
        assert values["zero_optimization"]["reduce_bucket_size"] == 4_000_000


def test_buckets_follow_the_parameter_count_within_bounds(configured):
    configuration = configured("zero2")
    sizes = [
        deepspeed_file.fill(configuration, "fp32", 1, parameters)["zero_optimization"]["reduce_bucket_size"]
        for parameters in (1000, 2 * 10**7, 10**8, 3 * 10**8, 10**11)
    ]
    assert sizes == [10**6, 10**7, 25 * 10**6, 37_500_000, 50 * 10**6]


@pytest.mark.parametrize("parameters", [10_000_002, 10_000_003, 300_000_008])
def test_buckets_hold_an_even_number_as_stages_1_and_2_want_it(configured, parameters):
    for stage in (1, 2):
        section = deepspeed_file.fill(configured(f"zero{stage}"), "fp32", 1, parameters)["zero_optimization"]
        assert section["allgather_bucket_size"] % 2 == section["reduce_bucket_size"] % 2 == 0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_gradients_of_bf16_are_summed_up_in_fp32_where_deepspeed_can(configured, stage, precision):
    def filled(file, *kept):
        values = deepspeed_file.fill(configured(file, precision=precision), precision, 2, 1000, *kept)
        types = values.get("data_types", {}).get("grad_accum_dtype"), values.get("communication_data_type")
        return (*types, deepspeed_file.gradients_of(values, precision))

    can = precision == "bf16" and stage > 0
    assert filled(f"zero{stage}") == (("fp32", "fp32", "fp32") if can else (None, None, precision))
    # A run that was begun by an earlier version, and files that say it themselves.
    assert filled(f"zero{stage}", "bf16") == (("bf16", "bf16", "bf16") if can else (None, None, precision))
    own = {
        **deepspeed_file.read(f"zero{stage}"),
        "data_types": {"grad_accum_dtype": precision},
        "communication_data_type": "fp32",
    }
    assert filled(own) == (precision, "fp32", precision)


HUGGING_FACE = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 12},
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "none", "pin_memory": True},
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 7,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}


def test_a_file_as_hugging_face_users_write_it_is_filled_and_the_rest_left(configured):
    configuration = configured(HUGGING_FACE)
    deepspeed_file.check(configuration, "fp32", 1)
    values = deepspeed_file.fill(configuration, "fp32", 1, 1000)
    assert "auto" not in json.dumps(values)
    assert values["fp16"] == {"enabled": False, "loss_scale": 0, "initial_scale_power": 12}
    assert values["zero_optimization"]["stage3_max_live_parameters"] == 1e9 and values["steps_per_print"] == 7
    # Nothing is offloaded: the optimizer is ours.
    assert "optimizer" not in values


def test_an_offloaded_optimizer_is_deepspeeds_own(configured):
    offload = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    configuration = configured({**HUGGING_FACE, "zero_optimization": offload})
    values = deepspeed_file.fill(configuration, "fp32", 1, 1000)
    params = values["optimizer"]["params"]
    assert (params["lr"], params["betas"], params["weight_decay"]) == (5e-3, [0.9, 0.98], 0.01)
    assert deepspeed_file.compiles_optimizer(deepspeed_file.read(configuration.deepspeed))
    file = {"optimizer": {"params": {"torch_adam": True}}, "zero_optimization": offload}
    configuration = configured(file)
    deepspeed_file.check(configuration, "fp32", 1)
    assert deepspeed_file.fill(configuration, "fp32", 1, 1000)["optimizer"]["params"]["torch_adam"] is True
    assert not deepspeed_file.compiles_optimizer(file)
    nothing = configured({"zero_optimization": {"stage": 2, "offload_optimizer": None}})
    deepspeed_file.check(nothing, "fp32", 1)
    assert "optimizer" not in deepspeed_file.fill(nothing, "fp32", 1, 1000)


def test_contradictions_are_all_listed_in_one_error(configured):
    file = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 2.0,
        "bf16": {"enabled": True, "check_grad_overflow": False},
        "fp16": {"enabled": True},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1, "eps": "auto"}},
        "scheduler": {"type": "WarmupLR"},
        "zero_optimization": {"stage": 4, "sub_group_size": "auto", "compute_grad_norm": False},
    }
    with pytest.raises(UserError) as caught:
        deepspeed_file.check(configured(file), "fp32", 2)
    text = str(caught.value)
    for expected in (
        "train_batch_size is 32 in",
        "but 16 by the run file (batch.samples)",
        "gradient_accumulation_steps is 3 in",
        "gradient_clipping is 2.0 in",
        "bf16.enabled is True in",
        "bf16.check_grad_overflow is False in",
        "zero_optimization.compute_grad_norm is False in",
        "fp16.enabled is True in",
        "optimizer.params.lr is 0.1 in",
        "optimizer.type is 'SGD' in",
        "scheduler stands in",
        "zero_optimization.stage is 4 in",
        "enable at most one",
        'zero_optimization.sub_group_size is "auto" in',
    ):
        assert expected in text
    assert "train_micro_batch_size_per_gpu" not in text.split('"auto" is understood')[0]


def test_parts_of_other_types_are_all_listed_in_one_error(configured):
    file = {
        "zero_optimization": None,
        "bf16": True,
        "fp16": 1,
        "optimizer": {"type": None, "params": [1]},
        "train_batch_size": 32,
    }
    with pytest.raises(UserError) as caught:
        deepspeed_file.check(configured(file), "fp32", 1)
    for expected in (
        "zero_optimization is null in",
        "bf16 is true in",
        "fp16 is 1 in",
        "optimizer.params is [1] in",
        "optimizer.type is None in",
        "train_batch_size is 32 in",
    ):
        assert expected in str(caught.value)
    for stage in (2, {"stage": True}, {"stage": 2.0}, {"offload_optimizer": 3}):
        with pytest.raises(UserError, match=r"zero_optimization.* is (2|true|True|2\.0|3) in"):
            deepspeed_file.check(configured({"zero_optimization": stage}), "fp32", 1)


def test_a_scheduler_is_refused_once(configured):
    scheduler = {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto"}}
    with pytest.raises(UserError) as caught:
        deepspeed_file.check(configured({**HUGGING_FACE, "scheduler": scheduler}), "fp32", 1)
    text = str(caught.value)
    assert text.startswith("scheduler stands in") and "; remove the section" in text and "auto" not in text


def test_parameters_of_the_optimizer_that_longmix_has_not_are_refused(configured):
    params = {"lr": "auto", "torch_adam": True, "adam_w_mode": True}
    deepspeed_file.check(configured({"optimizer": {"type": "Adam", "params": params}}), "fp32", 1)
    wrong = {"amsgrad": True, "adam_w_mode": False, "torch_adam": False, "fused": "auto"}
    with pytest.raises(UserError) as caught:
        deepspeed_file.check(configured({"optimizer": {"params": wrong}}), "fp32", 1)
    for key in wrong:
        assert str(caught.value).count(f"optimizer.params.{key} is ") == 1


@pytest.mark.parametrize(
    ("precision", "stage", "key", "refused", "agreeing"),
    [
        ("fp32", 1, "communication_data_type", ["fp16", "bf16", "int99"], ["fp32", None]),
        ("bf16", 2, "communication_data_type", ["fp16", "float16"], ["bf16", "bfloat16", "fp32"]),
        ("fp32", 3, "data_types.grad_accum_dtype", ["bf16", "fp16", 3], ["fp32", None]),
        ("bf16", 0, "data_types.grad_accum_dtype", ["fp32", "fp16"], ["bf16"]),
        ("bf16", 1, "data_types.grad_accum_dtype", ["fp16"], ["bf16", "fp32"]),
        ("bf16", 2, "data_types.grad_accum_dtype", ["fp16"], ["bf16", "fp32"]),
        ("bf16", 1, "data_types.param_dtype", ["fp32", "fp16"], ["bf16"]),
        ("bf16", 1, "data_types.keep_in_fp32_modules", [], ["auto"]),
        ("bf16", 1, "bfloat16.enabled", [False], [True]),
        ("fp32", 1, "bfloat16.enabled", [True], [False]),
        ("fp32", 1, "gradient_allreduce_op", ["sum"], ["mean"]),
        ("fp32", 1, "managed_gradient_accumulation", [False], [True]),
        ("fp32", 1, "steps_per_print", [0, "x", True, 1.0], [10, None]),
    ],
)
def test_keys_that_contradict_the_run_file_are_refused_and_those_that_agree_pass(
    configured, precision, stage, key, refused, agreeing
):
    *section, last = key.split(".")
    for values, fits in [*((value, True) for value in agreeing), *((value, False) for value in refused)]:
        file = {"zero_optimization": {"stage": stage}, **({section[0]: {last: values}} if section else {last: values})}
        configuration = configured(file, precision=precision)
        if fits:
            deepspeed_file.check(configuration, precision, 1)
        else:
            with pytest.raises(
                UserError, match=rf"^{re.escape(key)} is {values!r} in .*ds\.json, but [^;]*(; remove it)?$"
            ):
                deepspeed_file.check(configuration, precision, 1)


def test_torch_autocast_agrees_with_the_precision_or_is_off(configured):
    for section in ({"enabled": False, "dtype": "fp16"}, {"enabled": True, "dtype": "bfloat16"}, {}):
        deepspeed_file.check(configured({"torch_autocast": section}, precision="bf16"), "bf16", 1)
    for section in ({"enabled": True, "dtype": "fp16"}, {"enabled": True}, {"enabled": "yes"}):
        told = rf"^torch_autocast\.dtype is {section.get('dtype')!r} in .* but precision is bf16 by the run file"
        with pytest.raises(UserError, match=told):
            deepspeed_file.check(configured({"torch_autocast": section}, precision="bf16"), "bf16", 1)


@pytest.mark.full
def test_the_keys_that_deepspeed_reads_are_known(configured):
    """What the installed DeepSpeed asks its file for, and what it refuses for having been removed."""
    from deepspeed.runtime import config

    asked = set()

    class Watched(dict):
        def get(self, key, *default):
            asked.add(key)
            return super().get(key, *default)

        def __getitem__(self, key):
            asked.add(key)
            return super().__getitem__(key)

        def __contains__(self, key):
            asked.add(key)
            return super().__contains__(key)

        def keys(self):
            return self

    config.DeepSpeedConfig(Watched(train_batch_size=4))
    assert len(asked) > 40 and asked <= deepspeed_file.TOP_KEYS
    # Not asked for where nothing is initialised.
    assert deepspeed_file.TOP_KEYS - asked <= {"sequence_parallel_size", "data_parallel_size"}
    assert deepspeed_file.unknown_keys({"bf16": {}, "mixed_precision": 1, "//": 2}) == ["mixed_precision", "//"]


@pytest.mark.full
def test_unknown_keys_are_noted_and_the_run_goes_on(train, tmp_path, capsys):
    (tmp_path / "ds.json").write_text(json.dumps({"mixed_precision": True}))
    assert train(tmp_path / "run", deepspeed=str(tmp_path / "ds.json"), **{"optim.max_steps": 2}).code == 0
    assert "note: DeepSpeed knows no mixed_precision, which stands in" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"comet": {"enabled": True}}, r"\(with comet\.enabled\): ModuleNotFoundError: No module named 'comet_ml'"),
        ({"amp": {"enabled": True}}, r"\(with amp\.enabled\): DeepSpeedConfigError: NVIDIA Apex AMP integration has"),
        ({"timers": 3}, r"\(with timers\): TypeError"),
        ({"tensor_parallel": {"autotp_size": 2}}, r"\(with tensor_parallel\.autotp_size\): AssertionError"),
        ({"checkpoint": {"tag_validation": "x"}}, r"\(with checkpoint\.tag_validation\): DeepSpeedConfigError"),
    ],
)
def test_what_deepspeed_refuses_names_the_key(train, tmp_path, values, message):
    (tmp_path / "ds.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=rf"^deepspeed: DeepSpeed cannot do what .*ds\.json asks for {message}"):
        train(tmp_path / "run", deepspeed=str(tmp_path / "ds.json"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 30 + "1" + "}" * 30, r"nested too deeply \(more than 20 levels\)"),
        ('{"fp16": {}, "fp16": {}}', "the key 'fp16' stands twice"),
        (" " * 2**20 + "{}", "it has more than 1,048,576 bytes"),
        (b"\xff{}", "codec can't decode"),
    ],
)
def test_a_file_that_is_hardly_json(configured, tmp_path, text, message):
    configuration = configured({})
    (tmp_path / "ds.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=rf"ds\.json is not a readable JSON file: .*{message}") as told:
        deepspeed_file.check(configuration, "fp32", 1)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_file_that_is_no_json_object(configured, tmp_path, text):
    configuration = configured({})
    (tmp_path / "ds.json").write_text(text)
    with pytest.raises(UserError, match=r"ds\.json"):
        deepspeed_file.check(configuration, "fp32", 1)


def test_a_deepspeed_file_that_is_none_is_told_and_never_waited_for(tmp_path):
    os.mknod(tmp_path / "file", stat.S_IFSOCK | 0o600)  # opening a named pipe would never end without the check
    with pytest.raises(UserError, match=r"is not a readable JSON file: .*it is a socket, not a file"):
        deepspeed_file.read(str(tmp_path / "file"))
