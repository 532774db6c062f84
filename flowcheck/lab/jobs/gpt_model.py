"""A GPT-style decoder over bytes: learned positions, pre-norm blocks, tied output weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256
"""Number of tokens: all byte values."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the defaults give 10 million parameters."""

    layers: int = 8
    width: int = 320
    heads: int = 5
    context: int = 128
    dropout: float = 0.1


def make(**shape: float) -> GPT:
    """The GPT of these sizes (fields of `Shape`); usable as model factory of a job file."""
    return GPT(Shape(**shape))  # type: ignore[arg-type]


def loss(model: GPT) -> torch.Tensor:
    """A scalar loss on arbitrary tokens, whose backward pass shows the order of gradients."""
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.tokens.weight.device)
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


class Block(nn.Module):
    """Transformer block: attention, then a two-layer perceptron, each with a residual
    connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.norm_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.projection = nn.Linear(shape.width, shape.width)
        self.norm_perceptron = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, length, width]; the same shape is returned."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        x = x + self.drop(self.projection(mixed))
        hidden = functional.gelu(self.widen(self.norm_perceptron(x)))
        out: torch.Tensor = x + self.drop(self.narrow(hidden))
        return out


class GPT(nn.Module):
    """Next-byte prediction. forward: tokens [batch, length] -> logits [batch, length, 256]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.drop = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: integers [batch, length]; returns logits [batch, length, 256]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
