"""Train a GPT-2 on the sources of Python's standard library with the Trainer of transformers.

    slackline run --ranks 2 train.py --backend slackline --method ddp --steps 10 --output steps.json

The text is what `sysconfig` names as the standard library (PSF licence), so that each machine with
Python has it; a token is a byte. Rank 0 writes the loss and the time of each step as JSON.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import slackline

SIZES = {"full": (512, 9), "quick": (128, 2)}
"""The width and the number of layers of the model: 28.6 M and 0.45 M parameters."""
TOKENS = 64
"""The length of a sequence."""
BATCH = 4
"""The number of sequences of a rank in a step."""
PIECES = 1600
"""The number of sequences in an epoch, whatever the number of steps."""
GROUP_BYTES = 4 << 20
"""The size of the groups of gradients: a trial of sizes takes longer than the measurement."""


class Library(Dataset[dict[str, torch.Tensor]]):
    """Pieces of the standard library's modules, in the order of their names."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_path("stdlib"))
        needed, text = PIECES * TOKENS, bytearray()
        for path in sorted(folder.glob("*.py")):
            text += path.read_bytes()
            if len(text) >= needed:
                break
        self._pieces = torch.frombuffer(text[:needed], dtype=torch.uint8).view(-1, TOKENS)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self._pieces[index].long()
        return {"input_ids": tokens, "labels": tokens}


class OverlapTrainer(Trainer):  # type: ignore[misc, unused-ignore]  # transformers may be missing
    """A Trainer whose model is wrapped by slackline.overlap in place of DistributedDataParallel."""

    communicate: torch.dtype | None = None

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> Any:
        if not training:
            return model
        return slackline.overlap.DataParallel(
            model, self.optimizer, group_bytes=GROUP_BYTES, communicate=self.communicate
        )


class Steps(TrainerCallback):  # type: ignore[misc, unused-ignore]  # transformers may be missing
    """The Unix times at which steps ended, and their losses."""

    def __init__(self) -> None:
        self.ended_ns: list[int] = []
        self.losses: list[float] = []

    def on_step_end(self, *arguments: Any, **options: Any) -> None:
        """Note the time."""
        self.ended_ns.append(time.time_ns())

    def on_log(self, arguments: Any, state: Any, control: Any, logs: Any, **options: Any) -> None:
        """Note the loss of a step."""
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["gloo", "slackline"], default="slackline")
    parser.add_argument("--method", choices=["ddp", "overlap", "bf16"], default="ddp")
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)  # The line that differs; the Trainer uses the group.
    set_seed(1)
    width, layers = SIZES[options.size]
    config = GPT2Config(
        vocab_size=256, n_positions=TOKENS, n_embd=width, n_layer=layers, n_head=width // 64
    )
    config.bos_token_id = config.eos_token_id = 0
    steps = Steps()
    kind = Trainer if options.method == "ddp" else OverlapTrainer
    with tempfile.TemporaryDirectory() as folder:
        trainer = kind(
            GPT2LMHeadModel(config),
            TrainingArguments(
                folder,
                use_cpu=True,
                max_steps=options.steps,
                per_device_train_batch_size=BATCH,
                learning_rate=6e-4,
                lr_scheduler_type="constant_with_warmup",
                warmup_steps=10,
                logging_steps=1,
                ddp_find_unused_parameters=False,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Library(),
            callbacks=[steps],
        )
        if options.method == "bf16":
            trainer.communicate = torch.bfloat16
        trainer.train()
    if dist.get_rank() == 0:
        text = json.dumps({"ended_ns": steps.ended_ns, "losses": steps.losses})
        options.output.write_text(text)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
