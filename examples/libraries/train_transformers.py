"""Train a small language model from scratch with transformers' Trainer over slackline:

    slackline run --ranks 2 examples/libraries/train_transformers.py

Needs transformers and accelerate: pip install 'slackline-torch[programs]'.
"""

import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Counting(Dataset[dict[str, torch.Tensor]]):
    """256 sequences of 16 tokens; each token is one more than the token before it."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + index) % 32
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    dist.init_process_group("slackline")  # The trainer uses the existing process group.
    set_seed(1)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    config.bos_token_id = config.eos_token_id = 0
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            GPT2LMHeadModel(config),
            TrainingArguments(
                folder,
                use_cpu=True,
                num_train_epochs=6,
                per_device_train_batch_size=8,
                learning_rate=5e-3,
                logging_strategy="epoch",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Counting(),
        )
        trainer.train()
    if dist.get_rank() == 0:
        losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
        print(f"loss {losses[0]:.4f}, then {losses[-1]:.4f}")
        print(f"over {dist.get_backend()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
