"""Tests that a training has the same bits on one, two, three and five processes, in its parameters,
its buffers and the optimizer's state."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from example_ranks import asked, example
from torch import distributed, nn, optim

from slackline.overlap import DataParallel


class Net(nn.Module):
    """A convolution with BatchNorm and dropout."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()
        )
        self.head = nn.Linear(8 * 36, 10)

    def forward(self, x):
        return self.head(self.features(x))


def train(rank, size):
    autocast = os.environ["AUTOCAST"] == "1"
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = Net()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(4)
    data = torch.randn(160, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (160,), generator=generator)
    with DataParallel(model, optimizer, virtual_ranks=8, seed=3) as parallel:
        for step in range(7):
            for part in parallel.parts(step):
                with part, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    chosen = part.indices(len(data), batch=32)
                    loss = nn.functional.cross_entropy(parallel(data[chosen]), labels[chosen])
                    loss.backward()
            parallel.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        found = parallel.hash
        text = torch.tensor([int(found[at : at + 8], 16) for at in range(0, 32, 8)])
        texts = [torch.empty_like(text) for _ in range(size)]
        distributed.all_gather(texts, text)
        assert all(torch.equal(each, text) for each in texts)
    return found


@pytest.mark.parametrize("autocast", ["0", "1"])
def test_one_hash_on_any_number_of_processes(job, autocast):
    hashes = set()
    for size, rails in ((1, "shm"), (2, "tcp"), (3, "shm"), (5, "udp")):
        hashes |= {*job(size, train, environment={"SLACKLINE_RAILS": rails, "AUTOCAST": autocast})}
    assert len(hashes) == 1


def test_the_example_prints_one_hash_on_one_and_on_three_ranks(job):
    hashes = set()
    for size in (1, 3):
        store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        environment = asked(store, "one_hash.py", "--steps", 3)
        (output, message), *others = job(size, example, bare=True, environment=environment)
        assert (message, others) == ("", [["", ""]] * (size - 1))
        ranks = "1 rank" if size == 1 else f"{size} ranks"
        found = re.fullmatch(rf"{ranks}, 3 steps: \d+\.\d% right, hash ([0-9a-f]{{32}})\n", output)
        hashes.add(found[1])
    assert len(hashes) == 1


OTHER_INSTRUCTIONS = """
import os, runpy, sys
if os.environ["RANK"] == "1":
    os.environ["ATEN_CPU_CAPABILITY"] = "default"
sys.argv = ["one_hash.py", "--steps", "2"]
runpy.run_path({example!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_a_rank_with_another_instruction_set_is_refused_with_its_setting(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "one_hash.py"
    script = tmp_path / "script.py"
    script.write_text(OTHER_INSTRUCTIONS.format(example=str(example)))
    slackline = Path(sys.executable).with_name("slackline")
    done = subprocess.run(
        [slackline, "run", "--ranks", "2", script], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "rank 1 computes other bits than rank 0 from the same samples" in said
    assert "instruction set is '" in said
    assert "and 'DEFAULT' on rank 1" in said
