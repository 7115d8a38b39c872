"""What DeepSpeed does on GPUs alone: there is none here, so that what is asked of it is looked at, and no result."""

import json
from types import SimpleNamespace

import pytest
import torch

from longmix.trainer.engines import deepspeed as engines
from longmix.trainer.engines.make import make_engine
from longmix.trainer.settings import deepspeed_file, reading


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_a_gradient_larger_than_a_bucket_is_kept_until_it_has_been_summed_up(
    stage, world, run_values, tmp_path, monkeypatch
):
    values = deepspeed_file.read(f"zero{stage}")
    values["zero_optimization"]["reduce_bucket_size"] = 1000
    path = tmp_path / "small-buckets.json"
    path.write_text(json.dumps(values))
    changes = {"deepspeed": str(path), "precision": "fp32", "batch.micro_batch": 16}
    configuration = reading.from_dict(run_values(tmp_path / "run", "transformer", **changes), "test")
    engine = make_engine(torch.nn.Linear(50, 40, bias=False), configuration, "fp32", "fp32", world)
    optimizer, noted = engine.module.optimizer, []
    average = optimizer.average_tensor
    assert optimizer.reduction_stream is None  # on a CPU
    optimizer.reduction_stream = "summing up"
    optimizer.average_tensor = lambda gradients, dtype: (noted.append("summed up"), average(gradients, dtype))
    engines.keep_while_reduced(optimizer)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: noted.append((tensor.numel(), stream)))
    batch = {"input": torch.randn(16, 50)}
    engine.forward_backward([batch], lambda model, batch: (model(**batch).sum(), torch.ones(1)))
    assert noted[noted.index((2000, "summing up")) - 1] == "summed up"  # empty buckets come, too


def test_free_memory_is_asked_of_torch_whatever_gpus_are_called(monkeypatch):
    from deepspeed.accelerator import cuda_accelerator

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-8b2a2f3e-1d0c-5d1b-9b34-0a3c5a8e7f10")
    nvml = SimpleNamespace(nvmlDeviceGetHandleByIndex=lambda index: None)
    monkeypatch.setattr(cuda_accelerator, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 10))
    accelerator = cuda_accelerator.CUDA_Accelerator()
    with pytest.raises(ValueError, match="invalid literal for int"):
        accelerator.available_memory(0)
    engines.ask_torch_for_free_memory(accelerator)
    assert accelerator.available_memory() == accelerator.available_memory(0) == 5


@pytest.mark.parametrize("size", [1, 2])
def test_the_first_exchange_of_all_ranks_is_on_the_gpu_of_each(size, monkeypatch):
    import deepspeed

    noted, accelerator = [], SimpleNamespace()
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    monkeypatch.setattr(deepspeed, "init_distributed", lambda dist_backend, verbose: noted.append(dist_backend))
    monkeypatch.setattr(deepspeed, "get_accelerator", lambda: accelerator)
    monkeypatch.setattr(torch, "zeros", lambda size, device: device)
    monkeypatch.setattr(torch.distributed, "all_reduce", noted.append)
    gpu = torch.device("cuda", 1)
    engines.import_deepspeed(SimpleNamespace(device=gpu, size=size, is_first=True))
    assert noted == ["nccl", gpu][:size]
    assert hasattr(accelerator, "available_memory")
