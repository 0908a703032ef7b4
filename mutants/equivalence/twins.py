"""Which faults of the library are one fault with another constant in it."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable

from mutants.library.mutant import Mutant


def near_twins(mutant: Mutant, library: Iterable[Mutant]) -> frozenset[str]:
    """The ids of the near-twins of `mutant` in `library`, itself among them: they replace the same
    targets, with the same lines but for names of their own, literals, dtypes, signs and
    comparisons."""
    lines = _lines(mutant)
    return frozenset(
        other.id
        for other in library
        if other.id == mutant.id or (other.targets == mutant.targets and _lines(other) == lines)
    )


def _lines(mutant: Mutant) -> str:
    """The body of the fault, with the same word in place of each constant."""
    function = ast.parse(textwrap.dedent(mutant.source)).body[0]
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:]  # the first statement is the docstring
    return "\n".join(ast.dump(_Blanked().visit(statement)) for statement in body)


class _Blanked(ast.NodeTransformer):
    """Puts 0 for each literal and each attribute of torch, with its sign or without; `+` for `-`,
    and `<` for every comparison."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:  # noqa: ARG002
        return ast.Constant(0)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        inner = self.visit(node.operand)
        signed = isinstance(node.op, ast.UAdd | ast.USub)
        return inner if signed else ast.UnaryOp(node.op, inner)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "torch":
            return ast.Constant(0)
        return self.generic_visit(node)

    def visit_Sub(self, node: ast.Sub) -> ast.AST:  # noqa: ARG002
        return ast.Add()

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        operands = [self.visit(each) for each in (node.left, *node.comparators)]
        return ast.Compare(operands[0], [ast.Lt() for _ in node.ops], operands[1:])
