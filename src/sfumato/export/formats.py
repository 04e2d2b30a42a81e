"""The file formats: each writes a program as bytes, and runs such bytes again.

*Guarantee:* A file holds the program, its weights and the details given with it. Programs are
recorded with random images, so that none of the user's is in a file, and ONNX and pt2 files name no
path of the machine.
"""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato.errors import UserError
from sfumato.export.accurate_norms import with_accurate_norms
from sfumato.export.program import INPUT, OUTPUT, Program

DETAILS = "sfumato.json"
"""Name of the details within a file: a key of ONNX's metadata, an extra file in the others."""

OPSET = 18
"""The default opset: what PyTorch's exporter writes without conversion, and the most run."""

OPSETS = range(18, 24)
"""The opsets that can be chosen."""

_EXTRA = ("onnx", "onnxscript", "onnxruntime")

Runner = Callable[[Tensor], Tensor]
"""A function from images to probabilities."""


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        name: The name that users choose it by.
        title: The name for people.
        ending: The ending of its files.
        write: From a program, example images, details as JSON and an opset to the bytes of a file.
        read: From the bytes of a file to the function in it.
        packages: Packages that it needs beside PyTorch, all of the extra with the format's name.
    """

    name: str
    title: str
    ending: str
    write: Callable[[Program, Tensor, str, int], bytes]
    read: Callable[[bytes], Runner]
    packages: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse, before the work is done, a format whose packages are missing.

        Raises:
            UserError: If one cannot be imported.
        """
        for package in self.packages:
            try:
                importlib.import_module(package)
            except ImportError as error:
                raise UserError(
                    f"{self.title} files need the package {package}, which cannot be imported "
                    f"({error}): pip install 'sfumato[{self.name}]'."
                ) from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporters' remarks to their developers from the user's screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _exported(program: Program, example: Tensor) -> torch.export.ExportedProgram:
    """The graph of a program for any number of images, without the paths of its sources."""
    batch = torch.export.Dim("batch")
    found = torch.export.export(program, (example,), dynamic_shapes={INPUT: {0: batch}})
    for module in found.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    return found


def _write_onnx(program: Program, example: Tensor, details: str, opset: int) -> bytes:
    with _quietly():
        graph = with_accurate_norms(_exported(program, example))
        made = torch.onnx.export(
            graph, input_names=[INPUT], output_names=[OUTPUT], opset_version=opset,
            dynamic_shapes={INPUT: {0: "batch"}}, dynamo=True, verbose=False,
        )  # fmt: skip
        assert made is not None
        proto: Any = made.model_proto
    for node in (*proto.graph.node, *(n for f in proto.functions for n in f.node)):
        del node.metadata_props[:]
    del proto.metadata_props[:]
    proto.metadata_props.add(key=DETAILS, value=details)
    found = {entry.domain: entry.version for entry in proto.opset_import}
    if found.get("") != opset:
        raise UserError(
            f"PyTorch's exporter wrote opset {found.get('')} where {opset} was asked for: leave "
            f"--opset out, which gives {OPSET}."
        )
    content: bytes = proto.SerializeToString()
    return content


def _read_onnx(content: bytes) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # Errors alone.
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def _write_torchscript(program: Program, example: Tensor, details: str, opset: int) -> bytes:
    buffer = io.BytesIO()
    with _quietly():
        traced = torch.jit.trace(program, (example,), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, buffer, _extra_files={DETAILS: details})
    return buffer.getvalue()


def _read_torchscript(content: bytes) -> Runner:
    with _quietly():
        found: Runner = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return found


def _write_pt2(program: Program, example: Tensor, details: str, opset: int) -> bytes:
    buffer = io.BytesIO()
    with _quietly():
        torch.export.save(_exported(program, example), buffer, extra_files={DETAILS: details})
    return buffer.getvalue()


def _read_pt2(content: bytes) -> Runner:
    with _quietly():
        found: Runner = torch.export.load(io.BytesIO(content)).module()
    return found


FORMATS = {
    f.name: f
    for f in (
        Format("onnx", "ONNX", ".onnx", _write_onnx, _read_onnx, _EXTRA),
        Format("torchscript", "TorchScript", ".pt", _write_torchscript, _read_torchscript),
        Format("pt2", "PyTorch export", ".pt2", _write_pt2, _read_pt2),
    )
}
"""The formats by name."""
