"""Triton kernels in tensors of more than 2^31 elements, whose memory nobody has: no offset wraps around."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

FAR = 2**31
# What it adds up for each head is small, however large the rows are.
SMALL = {"add_parts"}


@pytest.fixture(scope="module")
def launches(script, triton, require_or_skip):
    """The rows of benchmarks/gpu_model/addresses.py."""
    names = script("gpu_model.far").FAR
    if not version("triton").startswith("3.7."):
        require_or_skip("triton", "parts of Triton 3.7's interpreter are replaced")
    done = subprocess.run(
        [sys.executable, "-m", "gpu_model.addresses"],
        cwd=script("gpu_model.compiling").FOLDER,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        input=json.dumps(list(names)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.full
def test_no_program_goes_outside_of_its_tensors(launches):
    assert [launch for launch in launches if launch["outside"]] == []


@pytest.mark.full
def test_no_offset_wraps_around_at_32_bits(launches):
    assert [launch for launch in launches if launch["wrapped"]] == []


@pytest.mark.full
def test_the_last_program_reaches_the_last_elements(launches):
    """A wrong offset may lie inside. A launch of links has some of the factors, whose weights it reads."""
    short = [
        (launch["case"], launch["name"], argument)
        for launch in launches
        for argument, (furthest, last) in launch["reached"].items()
        if last >= FAR
        and furthest is not None
        and furthest < 0.999 * last
        and (launch["case"], argument) != ("links-factors", "weights")
    ]
    assert short == []


@pytest.mark.full
def test_every_kernel_goes_so_far(script, launches):
    from gpu_model.launches import CASES

    far = {
        launch["name"]
        for launch in launches
        if any(furthest is not None and furthest >= FAR for furthest, _ in launch["reached"].values())
    }
    kernels = {name for _, name, _ in script("gpu_model.compiling").launched_grids(CASES)}
    assert kernels - far == SMALL
    assert far <= kernels
