r"""Train a small GPT on Python's own sources, in a pipeline with one stage on each rank.

    slackline run --ranks 4 --fault "link 1-2 delay 30ms" examples/pipeline_gpt.py
    slackline run --ranks 4 --fault "link 1-2 delay 30ms" examples/pipeline_gpt.py \\
        --schedule 1f1b --policy fixed

The text is the standard library's argparse, byte by byte. Rank 0 has the embedding, the last rank
has the head and the loss, and each rank has a part of the blocks. With --check, rank 0 then trains
the same network in one process, microbatch after microbatch, and compares the losses: all must have
equal bits.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional
from torch.optim import AdamW

import slackline

VOCABULARY = 256
CPU = torch.device("cpu")


class Block(nn.Module):
    """A transformer block: attention and a perceptron, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(self.norm2(x))


class Embedding(nn.Module):
    """An embedding of bytes and of their positions in the text."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, text: Tensor) -> Tensor:
        return self.bytes(text) + self.places[: text.shape[1]]


def part(stage: int, stages: int, given: argparse.Namespace) -> nn.Sequential:
    """Return the layers of one stage, with the same initial weights at every rank."""
    torch.manual_seed(stage)
    layers: list[nn.Module] = [Embedding(given.width, given.length)] if stage == 0 else []
    layers += [Block(given.width, 4) for _ in range(given.blocks)]
    if stage == stages - 1:
        layers += [nn.LayerNorm(given.width), nn.Linear(given.width, VOCABULARY)]
    return nn.Sequential(*layers)


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy of predictions of the next byte."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch(text: Tensor, step: int, given: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Return pieces of the text, and for each byte in them the byte that follows it."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - given.length - 1, (given.batch,), generator=generator)
    pieces = torch.stack([text[start : start + given.length + 1] for start in starts.tolist()])
    return pieces[:, :-1], pieces[:, 1:]


def in_a_pipeline(text: Tensor, given: argparse.Namespace) -> list[list[float]]:
    """Train in a pipeline and return each step's losses, one for each microbatch."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    module = part(rank, ranks, given)
    optimizer = AdamW(module.parameters(), lr=3e-3)
    schedule = slackline.pipeline.Schedule(
        PipelineStage(module, rank, ranks, CPU),
        given.microbatches,
        loss_of,
        schedule=given.schedule,
        memory=given.memory,
        config=slackline.pipeline.ScheduleConfig(policy=given.policy),
    )
    found = []
    for step in range(given.steps):
        inputs, target = batch(text, step, given)
        losses: list[Tensor] = []
        schedule.step(
            *((inputs,) if rank == 0 else ()),
            target=target if rank == ranks - 1 else None,
            losses=losses,
            return_outputs=False,
        )
        optimizer.step()
        optimizer.zero_grad()
        found.append([loss.item() for loss in losses])
    everybodys: list[list[list[float]]] = [[]] * ranks
    distributed.all_gather_object(everybodys, found)
    for record in schedule.records if rank == 0 else ():
        losses_then = everybodys[-1][record.step]
        mean = sum(losses_then) / len(losses_then)
        print(f"step {record.step}: loss {mean:.4f}, {record.wall_ns / 1e6:.0f} ms")
    if given.report and rank == 0:
        print(schedule.report())
    return everybodys[-1]


def alone(text: Tensor, stages: int, given: argparse.Namespace) -> list[list[float]]:
    """Train the whole network in this process, on the same batches, and return the same losses."""
    model = nn.Sequential(*(part(stage, stages, given) for stage in range(stages)))
    optimizer = AdamW(model.parameters(), lr=3e-3)
    found = []
    for step in range(given.steps):
        inputs, target = batch(text, step, given)
        losses = []
        for x, y in zip(
            inputs.tensor_split(given.microbatches),
            target.tensor_split(given.microbatches),
            strict=True,
        ):
            loss = loss_of(model(x), y)
            loss.backward()
            losses.append(loss.item())
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(given.microbatches)
        optimizer.step()
        optimizer.zero_grad()
        found.append(losses)
    return found


def main() -> int:
    """Train as the command line says; return 1 if --check finds different losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="train for this many steps (20)")
    parser.add_argument(
        "--microbatches", type=int, default=12, help="split a batch into this many parts (12)"
    )
    parser.add_argument("--batch", type=int, default=24, help="take this many texts a step (24)")
    parser.add_argument("--length", type=int, default=64, help="cut texts of this many bytes (64)")
    parser.add_argument("--width", type=int, default=128, help="use vectors of this width (128)")
    parser.add_argument(
        "--blocks", type=int, default=1, help="give each stage this many blocks (1)"
    )
    parser.add_argument(
        "--memory", type=int, help="let a stage hold this many activations (default: by schedule)"
    )
    parser.add_argument(
        "--schedule", help="plan by this schedule (default: SLACKLINE_SCHEDULE, or auto)"
    )
    parser.add_argument("--policy", help="follow this policy (default: the schedule's)")
    parser.add_argument("--report", action="store_true", help="print what happened on rank 0")
    parser.add_argument(
        "--check", action="store_true", help="train in one process as well, compare"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8)
    distributed.init_process_group("slackline")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    found = in_a_pipeline(text.long(), given)
    distributed.destroy_process_group()
    if not given.check or rank != 0:
        return 0
    same = found == alone(text.long(), ranks, given)
    print(f"losses in one process: {'the same bits' if same else 'others'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
