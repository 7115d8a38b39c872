"""longmix prepare text --share I/N on several hosts at once, of which each is killed again and again."""

import random
import signal
import subprocess
import sys
import time

import pytest

from longmix.data_prep.text import blocks, manifests
from longmix.data_prep.text.prepare import prepare_text
from longmix.data_prep.text.state import TextSettings

SHARE = """
import sys
from longmix.data_prep.text import blocks, manifests, shares
from longmix.data_prep.text.shares import Share
from longmix.data_prep.text.sharing import prepare_share
from longmix.data_prep.text.state import TextSettings
if __name__ == "__main__":
    blocks.BLOCK_DOCUMENTS, manifests.SAMPLES_PER_SHARD, shares._POLL_SECONDS = 20, 60, 0.05
    *sources, output, share = sys.argv[1:]
    options = TextSettings(source=tuple(sources[:2]), vocab_size=60, sequence_length=32,
                           validation=(sources[2],), test=(sources[3],))
    prepare_share(options, output, Share.parse(share), workers=1)
"""


def make_documents(count, seed):
    generator = random.Random(seed)
    return [
        " ".join(generator.choices(["bafin", "codex", "gulho", "wyst"], k=40)) + f" {seed} {n}" for n in range(count)
    ]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_shares_that_are_killed_and_started_again_make_the_same(contents, tmp_path, monkeypatch, fault_seed, count):
    """All at once, each killed three times at any moment of its life."""
    generator = random.Random(f"{fault_seed} shares {count}")
    for name, documents in (("a", 700), ("b", 500), ("validation", 60), ("test", 30)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(make_documents(documents, name)))
    texts = [str(tmp_path / f"{name}.txt") for name in ("a", "b", "validation", "test")]
    monkeypatch.setattr(blocks, "BLOCK_DOCUMENTS", 20)
    monkeypatch.setattr(manifests, "SAMPLES_PER_SHARD", 60)
    settings = TextSettings(
        source=tuple(texts[:2]), vocab_size=60, sequence_length=32, validation=(texts[2],), test=(texts[3],)
    )
    prepare_text(settings, tmp_path / "whole", workers=1)
    script, output = tmp_path / "share.py", tmp_path / "out"
    script.write_text(SHARE)

    def start(index):
        command = [sys.executable, str(script), *texts, str(output), f"{index}/{count}"]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    began = time.monotonic()
    running = {index: start(index) for index in range(count)}
    kills = dict.fromkeys(running, 3)
    while running:
        assert time.monotonic() - began < 300
        time.sleep(generator.uniform(0.3, 1.5) / count)
        for index, process in list(running.items()):
            if process.poll() is None and kills[index] and generator.random() < 0.5:
                kills[index] -= 1
                process.send_signal(signal.SIGKILL)
                process.wait()
            if process.poll() is None:
                continue
            _, error = process.communicate()
            assert process.returncode in (0, -signal.SIGKILL), error
            del running[index]
            if process.returncode:
                running[index] = start(index)
    assert contents(output) == contents(tmp_path / "whole")
    assert not (output / ".shares").exists()
