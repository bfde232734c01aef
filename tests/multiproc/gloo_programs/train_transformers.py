"""A program that trains a small language model from scratch with transformers' Trainer over
gloo."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Counting(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        tokens = (torch.arange(16) + index) % 32
        return {"input_ids": tokens, "labels": tokens}


set_seed(1)
config = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2)
config.bos_token_id = config.eos_token_id = 0
model = GPT2LMHeadModel(config)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model,
        TrainingArguments(
            folder,
            use_cpu=True,
            ddp_backend="gloo",
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
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, flat)
if dist.get_rank() == 0:
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    print(f"first loss {losses[0]:.6f}")
    print(f"last loss {losses[-1]:.6f}")
    print(f"parameters alike: {all(torch.equal(flat, other) for other in everyone)}")
    print(f"{dist.get_backend()} through {dist.group.WORLD.name()}")
dist.destroy_process_group()
