"""GGUF files: reading them whole or in parts, writing them, and what their metadata is made of."""

from shohin.formats.gguf.metadata import Metadata, Numbers, Strings, Value
from shohin.formats.gguf.reader import read_gguf
from shohin.formats.gguf.writer import NewTensor, write_gguf

__all__ = ["Metadata", "NewTensor", "Numbers", "Strings", "Value", "read_gguf", "write_gguf"]
