"""Micro-batches go to a GPU one ahead, on a stream of their own. Streams are stand-ins, which note what is asked."""

import contextlib
import itertools

import pytest
import torch

from longmix.trainer.engines.feeding import Feed


class Stream:
    def __init__(self, name, noted):
        self.name, self.noted = name, noted

    def wait_stream(self, other):
        self.noted.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def noted(monkeypatch):
    """What is asked of the streams of a stand-in for a GPU, in order; tensors are told apart by their first number."""
    noted, computing = [], []

    @contextlib.contextmanager
    def entered(stream):
        computing.append(stream)
        yield
        computing.pop()

    def copied(tensor, device, non_blocking):
        assert device.type == "cuda" and non_blocking
        noted.append(f"{computing[-1].name} copies {int(tensor[0])}")
        return tensor.clone()

    def recorded(tensor, stream):
        noted.append(f"{int(tensor[0])} is kept for {stream.name}")

    computing.append(Stream("compute", noted))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("copy", noted))
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing[-1])
    monkeypatch.setattr(torch.Tensor, "to", copied)
    monkeypatch.setattr(torch.Tensor, "record_stream", recorded)
    return noted


def batch_of(number):
    return {"input_ids": torch.full((2,), number), "longest_segment": 7}


def taken(noted, feed, batches, following=None):
    for batch, copy in zip(batches, feed.on_device(batches, following), strict=True):
        assert copy["longest_segment"] == 7 and torch.equal(copy["input_ids"], batch["input_ids"])
        assert copy["input_ids"] is not batch["input_ids"]
        noted.append(f"compute {int(batch['input_ids'][0])}")


def test_each_is_copied_before_the_one_ahead_of_it_is_computed(noted):
    feed = Feed(torch.device("cuda", 0))
    first, second, third, fourth = map(batch_of, range(1, 5))
    taken(noted, feed, [first, second], following=third)
    taken(noted, feed, [third, fourth])
    ready = ["compute waits for copy", "{} is kept for compute"]
    assert noted == [
        "copy copies 1",
        *(line.format(1) for line in ready),
        "copy copies 2",
        "compute 1",
        *(line.format(2) for line in ready),
        "copy copies 3",
        "compute 2",
        *(line.format(3) for line in ready),
        "copy copies 4",
        "compute 3",
        *(line.format(4) for line in ready),
        "compute 4",
    ]


def test_another_than_the_one_that_was_ahead_is_copied_itself(noted):
    feed = Feed(torch.device("cuda", 0))
    first, second, other = map(batch_of, range(1, 4))
    taken(noted, feed, [first], following=second)
    del noted[:]
    taken(noted, feed, [other])
    assert noted == ["copy copies 3", "compute waits for copy", "3 is kept for compute", "compute 3"]


def test_one_that_comes_twice_is_copied_twice(noted):
    """As in the dry run."""
    feed, batch = Feed(torch.device("cuda", 0)), batch_of(1)
    taken(noted, feed, [batch, batch])
    assert noted.count("copy copies 1") == 2


def test_nothing_is_ahead_on_a_cpu(noted):
    tensor = torch.zeros(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", lambda tensor, device, non_blocking: tensor)
        (batch,) = Feed(torch.device("cpu")).on_device([{"input_ids": tensor}], following={"input_ids": tensor})
    assert batch["input_ids"] is tensor and noted == []


@pytest.mark.parametrize("engine", [None, "zero1"])
def test_a_step_sends_the_first_micro_batch_of_the_next_one_ahead(train, monkeypatch, tmp_path, engine):
    calls, on_device = [], Feed.on_device

    def noting(self, batches, following=None):
        calls.append((batches, following))
        return on_device(self, batches, following)

    monkeypatch.setattr(Feed, "on_device", noting)
    train(tmp_path / "run", deepspeed=engine, **{"optim.max_steps": 4, "data.eval": None})
    steps = calls[1:]  # the first is the dry run's
    assert [len(batches) for batches, _ in steps] == [4] * 4 and calls[0][1] is None
    assert all(following is batches[0] for (_, following), (batches, _) in itertools.pairwise(steps))
    assert steps[-1][1] is None
