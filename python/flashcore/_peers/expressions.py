"""Scores and masks of the language of docs/expressions.md as Python functions of tensors: what FlexAttention is asked with."""

from __future__ import annotations

import ast
import operator
import re
from typing import Any, Callable

VARIABLES = ("s", "b", "h", "hk", "i", "j", "seqlen_q", "seqlen_kv")
_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def names_of(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def function_of(text: str, tensors: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """A function of {"s": ..., "b": ..., ...}. `text` is one that the laboratory has read: its grammar is Python's, but for three signs."""
    python = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    tree = ast.parse(python.strip(), mode="eval").body

    def value(node: ast.expr, at: dict[str, Any]) -> Any:
        import torch

        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return float("inf") if node.id == "inf" else at[node.id]
        if isinstance(node, ast.BinOp):
            return _OPERATIONS[type(node.op)](value(node.left, at), value(node.right, at))
        if isinstance(node, ast.Compare):
            return _OPERATIONS[type(node.ops[0])](value(node.left, at), value(node.comparators[0], at))
        if isinstance(node, ast.UnaryOp):
            x = value(node.operand, at)
            return ~x if isinstance(node.op, ast.Not) else -x
        if isinstance(node, ast.BoolOp):
            parts = [value(part, at) for part in node.values]
            result = parts[0]
            for part in parts[1:]:
                result = result & part if isinstance(node.op, ast.And) else result | part
            return result
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return tensors[node.value.id][tuple(value(x, at) for x in indices)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            arguments = [value(x, at) for x in node.args]
            if node.func.id in ("min", "max"):
                some = next((x for x in arguments if isinstance(x, torch.Tensor)), torch.zeros(()))
                pair = [x if isinstance(x, torch.Tensor) else torch.full_like(some, x) for x in arguments]
                return (torch.minimum if node.func.id == "min" else torch.maximum)(*pair)
            if node.func.id == "where":
                return torch.where(*arguments)
            return abs(arguments[0]) if node.func.id == "abs" else getattr(torch, node.func.id)(arguments[0])
        raise ValueError(f"'{ast.unparse(node)}' in '{text}'")

    return lambda at: value(tree, at)
