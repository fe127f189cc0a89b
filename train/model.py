"""A Qwen3 decoder in PyTorch whose matrices pass through ``quantise.on_grid``: the same mathematics as shohin's own."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from train.quantise import on_grid


@dataclass(frozen=True)
class Shape:
    """Sizes in elements; every size along K is a multiple of 128."""

    layers: int = 8
    hidden: int = 512
    heads: int = 4
    kv_heads: int = 2
    inner: int = 1536
    vocabulary: int = 4096
    context: int = 1024
    head: int = 128
    theta: float = 10_000.0
    eps: float = 1e-6

    def weights(self) -> int:
        """Weights in matrices, the tied embedding once."""
        attention = self.hidden * self.head * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + self.vocabulary * self.hidden

    def dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


class Matrix(nn.Module):
    """weight float32 [n, k]; multiplies by its value on the grid."""

    def __init__(self, k: int, n: int, grid: str, std: float) -> None:
        super().__init__()
        self.grid = grid
        self.weight = nn.Parameter(torch.randn(n, k) * std)

    def forward(self, x: Tensor) -> Tensor:
        """[..., k] -> [..., n]."""
        return F.linear(x, on_grid(self.weight, self.grid))


class Norm(nn.Module):
    """RMS norm with a gain, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> float32 [..., size]."""
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.gain


class Block(nn.Module):
    """One layer: attention and SwiGLU, each added to the residual stream."""

    def __init__(self, shape: Shape, grid: str, dropout: float) -> None:
        super().__init__()
        self.shape, self.dropout = shape, dropout
        wide, narrow, head = shape.heads * shape.head, shape.kv_heads * shape.head, shape.head
        std = shape.hidden**-0.5
        out = std / (2 * shape.layers) ** 0.5
        self.attn_norm, self.ffn_norm = Norm(shape.hidden, shape.eps), Norm(shape.hidden, shape.eps)
        self.attn_q_norm, self.attn_k_norm = Norm(head, shape.eps), Norm(head, shape.eps)
        self.attn_q = Matrix(shape.hidden, wide, grid, std)
        self.attn_k = Matrix(shape.hidden, narrow, grid, std)
        self.attn_v = Matrix(shape.hidden, narrow, grid, std)
        self.attn_output = Matrix(wide, shape.hidden, grid, out)
        self.ffn_gate = Matrix(shape.hidden, shape.inner, grid, std)
        self.ffn_up = Matrix(shape.hidden, shape.inner, grid, std)
        self.ffn_down = Matrix(shape.inner, shape.hidden, grid, out)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[rows, positions, hidden] -> the same."""
        drop = self.dropout if self.training else 0.0
        x = x + F.dropout(self._attend(self.attn_norm(x), cos, sin, drop), drop)
        y = self.ffn_norm(x)
        y = self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return x + F.dropout(y, drop)

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor, drop: float) -> Tensor:
        rows, positions, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(rows, positions, -1, self.shape.head).transpose(1, 2)

        q = rotated(self.attn_q_norm(heads(self.attn_q(x))), cos, sin)
        k = rotated(self.attn_k_norm(heads(self.attn_k(x))), cos, sin)
        v = heads(self.attn_v(x))
        found = F.scaled_dot_product_attention(
            q.to(v.dtype), k.to(v.dtype), v, is_causal=True, dropout_p=drop, enable_gqa=True
        )
        return self.attn_output(found.transpose(1, 2).reshape(rows, positions, -1))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on halves, as Qwen does it: [..., positions, head], tables [positions, head / 2]."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Decoder(nn.Module):
    """Embedding and head share one matrix."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, grid: str = "ternary", dropout: float = 0.0) -> None:
        super().__init__()
        self.shape, self.grid, self.dropout = shape, grid, dropout
        self.token_embd = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden) * 0.04)
        self.blk = nn.ModuleList(Block(shape, grid, dropout) for _ in range(shape.layers))
        self.output_norm = Norm(shape.hidden, shape.eps)
        steps = torch.arange(0, shape.head, 2) / shape.head
        angles = torch.arange(shape.context)[:, None] * shape.theta ** -steps[None]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [rows, positions] -> logits [rows, positions, vocabulary]."""
        drop = self.dropout if self.training else 0.0
        table = on_grid(self.token_embd, self.grid)
        x = F.dropout(F.embedding(ids, table), drop)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blk:
            x = block(x, cos, sin)
        return F.linear(self.output_norm(x), table)

    def faster(self) -> None:
        """Compile the layers; they share one graph."""
        for block in self.blk:
            block.compile()
