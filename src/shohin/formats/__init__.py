"""From a file to weights: containers, block formats, tensors, and where a model's file is found."""

from shohin.formats.gguf import Metadata, NewTensor, Value, read_gguf, write_gguf
from shohin.formats.hub import locate
from shohin.formats.opening import open
from shohin.formats.synthetic import SHAPES, ModelShape, Yarn, synthetic_weights, write_synthetic
from shohin.formats.tensor import Tensor
from shohin.formats.weights import Weights

__all__ = [
    "SHAPES",
    "Metadata",
    "ModelShape",
    "NewTensor",
    "Tensor",
    "Value",
    "Weights",
    "Yarn",
    "locate",
    "open",
    "read_gguf",
    "synthetic_weights",
    "write_gguf",
    "write_synthetic",
]
