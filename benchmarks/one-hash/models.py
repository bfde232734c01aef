"""Small models of three kinds, with data."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, LENGTH, WIDTH = 256, 32, 64


class Cnn(nn.Module):
    """A convolutional network with BatchNorm, on images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(16 * 64, 10)

    def loss(self, x: Tensor) -> Tensor:
        images = (x[:, :64].float() / WORDS).view(-1, 1, 8, 8)
        return functional.cross_entropy(self.head(self.features(images)), x[:, 64] % 10)


class Blocks(nn.Module):
    """Transformer blocks with dropout."""

    def __init__(self, layers: int, *, causal: bool) -> None:
        super().__init__()
        one = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device="cpu")
        hidden: Tensor = self.layers(x, mask=mask, is_causal=self.causal)
        return hidden


class Gpt(nn.Module):
    """A GPT whose output layer has the weights of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = Blocks(4, causal=True)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.words.weight

    def loss(self, x: Tensor) -> Tensor:
        text = x[:, : LENGTH + 1]
        hidden = self.blocks(self.words(text[:, :-1]) + self.places)
        return functional.cross_entropy(self.out(hidden).flatten(0, 1), text[:, 1:].flatten())


class Vit(nn.Module):
    """A vision transformer on images of 8 x 8, in patches of 2 x 2."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(4, WIDTH)
        self.places = nn.Parameter(torch.zeros(16, WIDTH))
        self.blocks = Blocks(2, causal=False)
        self.head = nn.Linear(WIDTH, 10)

    def loss(self, x: Tensor) -> Tensor:
        images = (x[:, :64].float() / WORDS).view(-1, 16, 4)
        hidden = self.blocks(self.patches(images) + self.places).mean(1)
        return functional.cross_entropy(self.head(hidden), x[:, 64] % 10)


MODELS = {"cnn": Cnn, "gpt": Gpt, "vit": Vit}


class Loss(nn.Module):
    """A model whose forward returns its loss."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = MODELS[name]()

    def forward(self, x: Tensor) -> Tensor:
        return self.model.loss(x)


def samples() -> Tensor:
    """Return 1,024 samples: rows of numbers below WORDS."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(WORDS, (1024, 65), generator=generator)
