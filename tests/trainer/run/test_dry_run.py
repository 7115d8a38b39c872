"""The step before the first: it leaves no trace, and finds what does not fit into memory or through the model."""

import random

import numpy as np
import pytest
import torch

from longmix.data_prep.errors import MachineFault, UserError
from longmix.modeling.s3attention import batch_norm
from longmix.trainer.objectives.labelled_positions import LabelledPositions
from longmix.trainer.objectives.objective import make_objective
from longmix.trainer.processes import world
from longmix.trainer.run import dry_run, loop
from longmix.trainer.samples.dataset import ShardedDataset
from longmix.trainer.samples.run_data import RunData
from longmix.trainer.settings.sections import ObjectiveSection

ENGINES = [
    ("zero0", "fp32"),
    ("zero0", "bf16"),
    ("zero1", "bf16"),
    ("zero2", "fp32"),
    ("zero3", "bf16"),
    (None, "fp32"),
]


def assert_equal(ours, theirs):
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_equal(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs, strict=True):
            assert_equal(*pair)
    elif hasattr(ours, "__dict__"):
        assert_equal(vars(ours), vars(theirs))
    else:
        assert ours == theirs


@pytest.mark.parametrize(("engine", "precision"), ENGINES)
def test_it_leaves_no_trace(train, read_metrics, tmp_path, monkeypatch, engine, precision):
    changes = {
        "deepspeed": engine,
        "precision": precision,
        "optim.max_steps": 2,
        "data.eval": None,
        "model.normalization": "batch",
        "model.hidden_dropout_prob": 0.1,
    }
    whole, draws, found = loop.dry_run, [], []

    def noted(*arguments):
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(5)
        if not draws:
            whole(*arguments)
        draws.append((torch.rand(3).tolist(), np.random.rand(), random.random()))
        torch.manual_seed(6)

    monkeypatch.setattr(loop, "dry_run", noted)
    for folder in (tmp_path / "with", tmp_path / "without"):
        train(folder, "s3attention", **changes)
        figures = [(one["loss"], one["grad_norm"], one["skipped_steps"]) for one in read_metrics(folder, "train")]
        saved = folder / "checkpoints" / "step-00000002"
        names = sorted(
            {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()} - {"manifest.json"}
        )
        # Pickles that this test has made itself; equal ones may differ in their bytes.
        states = {
            name: torch.load(saved / name, weights_only=False) if name.endswith(".pt") else (saved / name).read_bytes()
            for name in names
            if not name.endswith("README.md")  # it names the run
        }
        found.append((figures, states))
    assert draws[0] == draws[1]
    assert {"state.json", "model/model.safetensors"} < found[0][1].keys() and found[0][0][-1][-1] == 0
    assert_equal(found[0], found[1])


@pytest.fixture
def smaller_memory(monkeypatch):
    """smaller_memory(n): a device for n samples of 24 tokens; the sizes that were tried."""

    def make(largest):
        whole, tried = LabelledPositions.forward, []

        def forward(self, model, batch, items):
            samples, tokens = batch["input_ids"].shape
            tried.append(samples)
            if samples * tokens > largest * 24:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            return whole(self, model, batch, items)

        monkeypatch.setattr(LabelledPositions, "forward", forward)
        return tried

    return make


@pytest.mark.parametrize("engine", [None, "zero2"])
def test_a_micro_batch_that_fits_is_proposed(train, tmp_path, smaller_memory, engine):
    tried = smaller_memory(5)
    changes = {"deepspeed": engine, "batch.samples": 24, "batch.micro_batch": 12, "model.hidden_size": 8}
    with pytest.raises(world.SharedMistake) as told:
        train(tmp_path / "run", **changes)
    assert str(told.value) == (
        "batch.micro_batch 12 (samples of 24 tokens) does not fit into the memory of rank 0; set batch.micro_batch=4 "
        "(the batch stays the same, it is cut into more pieces), or run.gradient_checkpointing=true"
    )
    # Those that divide the batch, from the largest on; no step was made.
    assert tried == [12, 8, 6, 4]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert train(tmp_path / "run", **{**changes, "batch.micro_batch": 4, "optim.max_steps": 2}).code == 0


def test_where_no_rank_can_try_alone_half_is_proposed(train, tmp_path, smaller_memory):
    tried = smaller_memory(1)
    with pytest.raises(UserError, match=r"memory of rank 0; set batch\.micro_batch=2 "):
        train(tmp_path / "run", deepspeed="zero3")
    assert tried == [4]


def test_what_fits_in_no_size_is_told(train, tmp_path, smaller_memory):
    tried = smaller_memory(0.5)
    with pytest.raises(
        UserError, match=r"nor does any smaller one: set run\.gradient_checkpointing, or take a smaller"
    ):
        train(tmp_path / "run")
    assert tried == [4, 2, 1]


def test_only_the_step_may_not_fit(train, tmp_path, monkeypatch):
    whole, calls = LabelledPositions.forward, []

    def forward(self, model, batch, items):
        calls.append(None)
        if len(calls) == 3:  # beside the gradients of another
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, model, batch, items)

    monkeypatch.setattr(LabelledPositions, "forward", forward)
    with pytest.raises(UserError, match=r"batch\.micro_batch 4 .* set batch\.micro_batch=2 "):
        train(tmp_path / "run")


@pytest.mark.parametrize("engine", [None, "zero3"])
def test_what_the_model_does_not_take_is_told_with_its_shapes(train, tmp_path, monkeypatch, engine):
    def forward(self, model, batch, items):
        return torch.ones(3, 5) @ torch.ones(6, 2)

    monkeypatch.setattr(LabelledPositions, "forward", forward)
    with pytest.raises(UserError) as told:
        train(tmp_path / "run", deepspeed=engine)
    text = str(told.value)
    assert text.startswith(
        "model transformer does not take a micro-batch of the data's longest samples (input_ids (4, 24)"
    )
    assert "labels (4, 24)" in text and "attention_mask (4, 24)" in text
    assert text.endswith("mat1 and mat2 shapes cannot be multiplied (3x5 and 6x2)") and "\n" not in text


@pytest.mark.parametrize("engine", [None, "zero3"])
def test_a_device_that_fails_is_no_mistake(train, tmp_path, monkeypatch, engine):
    def forward(self, model, batch, items):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(LabelledPositions, "forward", forward)
    with pytest.raises(MachineFault, match=r"the device or its network fails \(CUDA error: uncorrectable ECC"):
        train(tmp_path / "run", deepspeed=engine)


def test_a_compiled_layer_that_fails_at_stage_3_is_told(train, tmp_path, monkeypatch):
    def forward(self, model, batch, items):
        raise RuntimeError("a and b must have same reduction dim, but got [4, 32] X [0].\nand more")

    monkeypatch.setattr(LabelledPositions, "forward", forward)
    with pytest.raises(UserError, match=r"run\.compile is layer, but at ZeRO stage 3 .*, or take .* X \[0\]\.\)$"):
        train(tmp_path / "run", deepspeed="zero3", **{"run.compile": "layer"})


def test_it_is_made_before_a_checkpoint_is_loaded(train, tmp_path, smaller_memory):
    assert train(tmp_path / "run", **{"run.stop_at_step": 2}).code == 75
    smaller_memory(4)
    with pytest.raises(UserError, match=r"batch\.micro_batch=4"):
        train(tmp_path / "run", **{"batch.micro_batch": 8})
    assert train(tmp_path / "run").code == 0


def test_batch_statistics_are_left_out_where_a_rank_tries_alone(train, tmp_path, monkeypatch):
    """They are exchanged with other ranks, which may have failed by then."""
    whole, summed = LabelledPositions.forward, batch_norm._sum_over_ranks
    exchanges = []

    def forward(self, model, batch, items):
        exchanges.append(0)
        return whole(self, model, batch, items)

    def sum_over_ranks(*arguments):
        exchanges[-1] += 1
        return summed(*arguments)

    monkeypatch.setattr(LabelledPositions, "forward", forward)
    monkeypatch.setattr(batch_norm, "_sum_over_ranks", sum_over_ranks)
    train(tmp_path / "run", "s3attention", **{"model.normalization": "batch", "data.eval": None, "optim.max_steps": 2})
    # Alone; the two micro-batches of the dry run; two steps of four.
    assert exchanges == [0] + [2] * 10


def test_its_samples_are_the_longest_and_no_shard_is_read(data, write_data, tmp_path, monkeypatch):
    write_data(tmp_path / "short", 20, 3, sequence_length=24)
    write_data(tmp_path / "untold", 20, 3, sequence_length=None)
    train, short, untold = (
        ShardedDataset(str(path)) for path in (data / "train", tmp_path / "short", tmp_path / "untold")
    )
    longest = max(len(sample["input_ids"]) for sample in untold.read(np.arange(20)))
    assert dry_run.longest_sample(RunData([untold], None, None, None)) == longest
    monkeypatch.setattr(ShardedDataset, "read", None)
    source = RunData([short, train], None, None, None)
    assert dry_run.longest_sample(source) == 24
    section = ObjectiveSection()
    objective = make_objective(section, 0, train.manifest, None)
    batch = dry_run.largest_micro_batch(source, objective, 24, 64)
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape == (64, 24)
    labelled = (batch["labels"] != -100).float().mean()
    assert 0.1 < labelled < 0.2
