"""Division of a traced graph into consecutive parts that can be compiled apart from each other."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves


@dataclass
class Part:
    """Some consecutive operators of a graph.

    Attributes:
        module: The operators, as a module from a list of tensors to a tuple of tensors.
        inputs: Operators or placeholders of the whole graph whose values are the inputs.
        outputs: Operators of the whole graph whose values are the outputs.
    """

    module: GraphModule
    inputs: list[Node]
    outputs: list[Node]

    def examples(self) -> list[Tensor]:
        """Tensors without data like the inputs."""
        return [node.meta["val"] for node in self.inputs]


def parts_of(whole: GraphModule, count: int) -> list[Part] | None:
    """Divide a graph into so many parts, or fewer; None where it cannot be divided.

    A part begins where the compiler would begin a kernel anyway: at a convolution, a product of
    matrices or an operator that it does not know. Views and constants are repeated in each part
    that needs them, so no view crosses from one part to another.
    """
    nodes = list(whole.graph.nodes)
    calls = [node for node in nodes if node.op == "call_function"]
    if len(calls) + sum(node.op in ("placeholder", "get_attr", "output") for node in nodes) < len(
        nodes
    ):
        return None
    if any(not isinstance(n.meta.get("val"), Tensor) for n in nodes if n.op == "placeholder"):
        return None
    place = _places(calls, count)
    last = place[calls[-1]] if calls else 0
    if not last:
        return None
    result = [n for n in tree_leaves(_output(whole).args[0]) if isinstance(n, Node)]
    needs = [_needed(calls, place, part) for part in range(last + 1)]
    parts = []
    for part in range(last + 1):
        own = [node for node in calls if place[node] == part]
        later = {node for other in needs[part + 1 :] for node in other}
        outputs = [node for node in own if node in later or node in set(result)]
        if any(not isinstance(node.meta.get("val"), Tensor) for node in (*needs[part], *outputs)):
            return None
        parts.append(Part(_module(whole, own, needs[part], outputs), needs[part], outputs))
    return [part for part in parts if part.outputs or _mutates(part)]


def _output(module: GraphModule) -> Node:
    """The node with the results of a graph."""
    found: Node = next(iter(reversed(module.graph.nodes)))
    return found


def _mutates(part: Part) -> bool:
    """Tell whether a part writes into its inputs."""
    return any(
        node.op == "call_function" and getattr(node.target, "_schema", None) is not None
        and node.target._schema.is_mutable
        for node in part.module.graph.nodes
    )  # fmt: skip


def _places(calls: list[Node], count: int) -> dict[Node, int]:
    """The number of the part of each operator."""
    place: dict[Node, int] = {}
    part, begun, size = 0, 0, max(1, -(-len(calls) // max(1, count)))
    for number, node in enumerate(calls):
        if node.target is operator.getitem:
            place[node] = place[node.all_input_nodes[0]]  # Its results stay with an operator.
            continue
        if number - begun >= size and part + 1 < count and _begins_kernel(node):
            part, begun = part + 1, number
        place[node] = part
    return place


_LIBRARY = ("convolution", "mm", "bmm", "addmm", "baddbmm", "convolution_backward")
"""Names of ATen operators that run as calls of a library."""


def _begins_kernel(node: Node) -> bool:
    """Tell whether an operator is not fused with those before it."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None:
        return False
    space, _, name = str(packet).rpartition(".")
    return name in _LIBRARY if space == "aten" else space not in ("prims", "")


def _repeats(node: Node) -> bool:
    """Tell whether an operator costs nothing: a view, or a constant."""
    target = node.target
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    views = any(
        argument.alias_info is not None and not argument.alias_info.is_write
        for argument in target._schema.arguments
    )
    single = len(target._schema.returns) == 1
    return single and (views or target in _CONSTANTS) and isinstance(node.meta.get("val"), Tensor)


_CONSTANTS = frozenset((
    torch.ops.aten.full.default,
    torch.ops.aten.scalar_tensor.default,
    torch.ops.prims.iota.default,
))  # fmt: skip


def _needed(calls: list[Node], place: dict[Node, int], part: int) -> list[Node]:
    """The values that a part takes from earlier ones or from the arguments of the graph."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()

    def visit(node: Node) -> None:
        if node in seen:
            return
        seen.add(node)
        for given in node.all_input_nodes:
            if place.get(given) == part:
                continue
            if _repeats(given):
                visit(given)
            else:
                found[given] = None

    for node in calls:
        if place[node] == part:
            visit(node)
    return list(found)


def _module(
    whole: GraphModule, own: list[Node], inputs: list[Node], outputs: list[Node]
) -> GraphModule:
    """The operators of a part as a module of their own, with all strides of its results fixed."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)

    def copy(node: Node) -> Node:
        if node not in copies:
            for given in node.all_input_nodes:
                copy(given)
            copies[node] = graph.node_copy(node, lambda given: copies[given])
        return copies[node]

    for node in own:
        copy(node)
    result = graph.output(tuple(copies[node] for node in outputs))
    result.meta["user_visible_output_idxs"] = list(range(len(outputs)))
    return GraphModule(whole, graph)
