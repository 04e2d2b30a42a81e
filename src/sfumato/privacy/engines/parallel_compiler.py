"""Compilation of large graphs by several processes at once.

PyTorch's compiler works on one graph in one thread, which takes most of the time before the first
step of a deep network. Here a graph is divided into parts. Other processes compile them into the
compiler's cache on disk, those of the forward and of the backward pass at the same time, and this
process then loads them from there. What they could not compile, it compiles itself: where anything
fails, only time is lost.

The environment variable SFUMATO_COMPILERS is the number of these processes, none by default: what
they save on a GPU has not been measured.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map_only

from sfumato.errors import UserError
from sfumato.privacy.engines.graph_parts import Part, parts_of

_LARGE = 500
"""Number of operators of a part; one of the forward pass of ResNet-18 has about as many."""

_PARTS = 16
"""Most parts of a graph."""

VARIABLE = "SFUMATO_COMPILERS"
"""The environment variable with the number of processes."""

_PATIENCE = 240.0
"""Seconds after which a part is no longer waited for."""

_pool: Any = None


def start() -> None:
    """Start the processes, without waiting for them; they take seconds to load the compiler.

    Raises:
        UserError: Their number, in the environment, is none.
    """
    global _pool
    given = os.environ.get(VARIABLE, "").strip() or "0"
    if not given.isdecimal():
        raise UserError(f"{VARIABLE} is a number of processes, such as 8, not {given!r}.")
    if _pool is not None or not int(given):
        return
    with contextlib.suppress(Exception):  # None of it is part of PyTorch's interface.
        from torch._inductor.compile_worker.subproc_pool import SubprocKind, SubprocPool

        _pool = SubprocPool(int(given), kind=SubprocKind.SPAWN)
        for _ in range(int(given)):
            _pool.submit(prepare)


def stop() -> None:
    """End the processes, which hold memory on a GPU."""
    global _pool
    pool, _pool = _pool, None
    if pool is not None:
        with contextlib.suppress(Exception):
            pool.shutdown()


def prepare() -> None:
    """Load what a process needs before it can compile a part."""
    from torch._inductor import compile_fx  # noqa: F401

    import sfumato.kernels  # noqa: F401


class Divided:
    """A graph in parts, as a function of the list of its arguments.

    Args:
        module: The whole graph.
        parts: Its parts.
        compile_part: Compile one of them in this process.
    """

    def __init__(
        self, module: GraphModule, parts: list[Part], compile_part: Callable[[Part], Any]
    ) -> None:
        self._boxed_call = True  # It takes a list, and empties it.
        self._parts, self._compile = parts, compile_part
        self._arguments = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._result = next(iter(reversed(module.graph.nodes))).args[0]
        self._functions: list[Any] = []
        self._sent: list[Future[None] | None] = []
        kept = set(self._nodes())
        self._drop: list[list[Node]] = []
        for part in reversed(parts):
            own = [n for n in (*part.inputs, *part.outputs) if n not in kept]
            self._drop.append(list(dict.fromkeys(own)))
            kept.update(own)
        self._drop.reverse()

    def _nodes(self) -> list[Node]:
        found: list[Node] = []
        tree_map_only(Node, found.append, self._result)
        return found

    def send(self, pool: Any, data: Sequence[bytes | None]) -> None:
        """Have other processes compile the parts, each from its serialised form."""
        self._sent = [
            None if part is None else pool.submit(compile_into_cache, part) for part in data
        ]

    def receive(self) -> None:
        """Load the parts, once other processes have compiled them."""
        for number, part in enumerate(self._parts):
            sent = self._sent[number] if number < len(self._sent) else None
            if sent is not None:
                with contextlib.suppress(Exception):
                    sent.result(timeout=_PATIENCE)
            self._functions.append(self._compile(part))
            part.module = None  # type: ignore[assignment]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """The results for a list of arguments, which is emptied."""
        known = dict(zip(self._arguments, arguments, strict=True))
        arguments.clear()
        for part, function, drop in zip(self._parts, self._functions, self._drop, strict=True):
            found = function([known[node] for node in part.inputs])
            known.update(zip(part.outputs, found, strict=True))
            for node in drop:
                known.pop(node, None)
        return list(tree_map_only(Node, known.__getitem__, self._result))


@contextlib.contextmanager
def dividing(waiting: list[Divided]) -> Iterator[Callable[..., Any] | None]:
    """Return a compiler of graphs for `compile_fx` that divides large ones, or None for its own.

    Args:
        waiting: Receives the graphs whose parts other processes are compiling.
    """
    if _pool is None:
        yield None
        return
    from torch._functorch import config

    def compile_graph(module: GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx_inner

        found = _divided(module, settings)
        if found is None:
            return compile_fx_inner(module, inputs, **settings)
        waiting.append(found)
        return found

    # Both graphs at the same time; by default the second is compiled when it first runs.
    with config.patch(force_non_lazy_backward_lowering=True):
        yield compile_graph


def _divided(module: GraphModule, settings: dict[str, Any]) -> Divided | None:
    """A graph whose parts other processes have begun to compile; None if it is small."""
    count = sum(node.op == "call_function" for node in module.graph.nodes)
    parts = parts_of(module, min(-(-count // _LARGE), _PARTS)) if count > _LARGE else None
    if parts is None or len(parts) < 2:
        return None
    arguments = [node for node in module.graph.nodes if node.op == "placeholder"]
    still = {arguments[number] for number in settings.get("static_input_idxs", ())}
    sent: list[bytes | None] = []
    own = [
        settings | {"static_input_idxs": [i for i, n in enumerate(part.inputs) if n in still]}
        for part in parts
    ]
    for part, of_part in zip(parts, own, strict=True):
        try:
            sent.append(_serialised(part, of_part))
        except Exception:  # It has something that cannot be sent.
            sent.append(None)
    by_part = {id(part): of_part for part, of_part in zip(parts, own, strict=True)}
    configured = _settings()

    def compile_here(part: Part) -> Any:
        from torch._guards import TracingContext, detect_fake_mode, tracing
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx_inner

        # A context of its own: the one of the whole graph knows which of its arguments may be
        # overwritten, by their places among all of them.
        with config.patch(configured), tracing(TracingContext(detect_fake_mode(part.examples()))):
            return compile_fx_inner(part.module, part.examples(), **by_part[id(part)])

    found = Divided(module, parts, compile_here)
    found.send(_pool, sent)
    return found


def _settings() -> dict[str, Any]:
    """The compiler's settings of now."""
    from torch._inductor import config

    found: dict[str, Any] = config.save_config_portable(ignore_private_configs=False)
    return found


def _matmul_settings() -> dict[str, Any]:
    """PyTorch's settings of products of matrices, which are part of the cache key."""
    return {name: getattr(torch.backends.cuda.matmul, name) for name in _MATMUL}


_MATMUL = (
    "fp32_precision",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
)


def _serialised(part: Part, settings: dict[str, Any]) -> bytes:
    from torch.fx._graph_pickler import GraphPickler, Options

    data = part.module, part.examples(), settings, _settings(), _matmul_settings()
    found: bytes = GraphPickler.dumps(data, Options(ops_filter=None))
    return found


def compile_into_cache(data: bytes) -> None:
    """Compile a serialised part; what comes of it is in the compiler's cache on disk."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    import sfumato.kernels  # noqa: F401  The operators of the graph.

    shapes = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    loaded: Any = GraphPickler.loads(data, shapes)
    module, inputs, settings, configured, matmul = loaded
    for name, value in matmul.items():
        if getattr(torch.backends.cuda.matmul, name) != value:  # To set it changes the key too.
            setattr(torch.backends.cuda.matmul, name, value)
    with config.patch(configured | {"compile_threads": 1}), tracing(TracingContext(shapes)):
        compile_fx_inner(module, list(inputs), **settings)
