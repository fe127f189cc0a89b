"""Reading a model's answer while it comes: thinking, tool calls, stop strings."""

from shohin.serve.parsing.stops import StopMatcher
from shohin.serve.parsing.thinking import Said, ThinkingSplitter, opens_thinking
from shohin.serve.parsing.tool_calls import Parsed, ToolCall, ToolCallParser

__all__ = ["Parsed", "Said", "StopMatcher", "ThinkingSplitter", "ToolCall", "ToolCallParser", "opens_thinking"]
