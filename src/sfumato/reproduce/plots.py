"""Assignment of rows to figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Series = tuple[str, tuple[tuple[float, str], ...]]
"""A label, and the numbers on the axis with the row at each."""


@dataclass(frozen=True)
class Panel:
    """One part of a figure."""

    title: str
    series: tuple[Series, ...]

    def rows(self) -> Iterator[str]:
        """The rows that it shows."""
        for _, points in self.series:
            yield from (row for _, row in points)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure of a paper.

    Attributes:
        paper: The paper.
        name: Name of the file, after the paper's.
        source: The table or figure of the paper that it belongs to.
        kind: Against a number, over training, or side by side.
        caption: A sentence about its content.
        panels: Its panels, side by side.
        x: Label of the horizontal axis.
        y: Label of the values; over training, the results state theirs.
        measure: The measure that is shown instead of the accuracy.
        one_change: Whether only one number may differ between the rows: best settings are then left
            out.
    """

    paper: str
    name: str
    source: str
    kind: Literal["sweep", "curves", "dots"]
    caption: str
    panels: tuple[Panel, ...]
    x: str = ""
    y: str = "test accuracy"
    measure: str = ""
    one_change: bool = False

    def rows(self) -> Iterator[str]:
        """The rows that it shows."""
        for panel in self.panels:
            yield from panel.rows()


def _one(label: str, row: str) -> Series:
    return (label, ((0.0, row),))


def _swept(label: str, rows: dict[float, str]) -> Series:
    return (label, tuple(rows.items()))


def _capacity(data: str, title: str) -> Panel:
    sizes = (4, 8, 16, 32, 64)
    private = {float(k): f"shoe-fit/capacity-k{k}-{data}-eps1.69" for k in sizes}
    bare = {float(k): f"shoe-fit/capacity-k{k}-{data}-not-private" for k in sizes}
    return Panel(title, (_swept("DP-SGD, ε 1.69", private), _swept("SGD", bare)))


_D4 = "equivariant/eq-resnet9-d4"
_COMPONENTS = (
    "base", "norm-instance", "norm-layer", "norm-none", "activation-relu", "pooling-average",
    "pooling-none", "links-residual", "links-plain", "wide16-deep2", "wide4-deep5", "wide4-deep9",
    "wide2-deep16",
)  # fmt: skip

PLOTS: tuple[Plot, ...] = (
    Plot(
        paper="smoothnets", name="architectures", source="table 2", kind="dots",
        caption="Architectures at epsilon 7 (dots: ours, ticks: seeds, diamonds: published).",
        panels=tuple(
            Panel(title, tuple(
                _one(model, f"smoothnets/{model}-{data}-eps7")
                for model in ("smoothnet", "densenet121", "resnet18", "resnet34", "efficientnet-b0")
            ))
            for data, title in (("cifar10", "CIFAR-10"), ("imagenette", "ImageNette"))
        ),
    ),
    Plot(
        paper="smoothnets", name="components", source="section 2", kind="dots",
        caption="SmoothNet with one component exchanged, at epsilon 7.",
        panels=(
            Panel("CIFAR-10", tuple(
                _one(what, f"smoothnets/component-{what}-cifar10-eps7") for what in _COMPONENTS
            )),
        ),
    ),
    Plot(
        paper="scale-norm", name="budgets", source="table 1", kind="sweep", x="ε",
        caption="With and without ScaleNorm (median, lowest and highest seed; dotted: published).",
        panels=tuple(
            Panel(title, tuple(
                _swept(label, {e: f"scale-norm/{model}-{data}-eps{e:g}" for e in budgets})
                for label, model in (("ScaleNorm", "scale-resnet9"), ("no ScaleNorm", "resnet9"))
            ))
            for data, title, budgets in (
                ("cifar10", "CIFAR-10", (2.89, 7.42, 9.88)),
                ("imagenette", "ImageNette", (2.89, 7.42, 9.88)),
            )
        ),
    ),
    Plot(
        paper="scale-norm", name="curves", source="table 2", kind="curves", x="ε spent",
        caption="WRN-16-4 against the privacy spent (diamonds: averaged weights on the test set "
        "at the end).",
        panels=(
            Panel("CIFAR-10", (
                _one("no ScaleNorm", "scale-norm/wrn-16-4-cifar10-eps8"),
                _one("ScaleNorm", "scale-norm/scale-wrn-16-4-cifar10-eps8"),
            )),
        ),
    ),
    Plot(
        paper="shoe-fit", name="capacity", source="figure 1", kind="sweep", x="filters k",
        caption="Accuracy against the number of filters, with and without privacy.",
        panels=(_capacity("mnist", "MNIST"), _capacity("fashion", "Fashion-MNIST")),
    ),
    Plot(
        paper="shoe-fit", name="tanh-relu", source="figures 2 and 3, summary", kind="curves",
        x="ε spent",
        caption="tanh and ReLU against the privacy spent (diamonds: on the test set at the end).",
        panels=(
            Panel("MNIST", (
                _one("tanh", "shoe-fit/tanh-mnist-eps2.93"),
                _one("ReLU", "shoe-fit/relu-mnist-eps2.93"),
            )),
            Panel("Fashion-MNIST, B = 256", (
                _one("tanh", "shoe-fit/tanh-b256-fashion-eps2.7"),
                _one("ReLU", "shoe-fit/relu-b256-fashion-eps2.7"),
            )),
            Panel("Fashion-MNIST, B = 1024", (
                _one("tanh", "shoe-fit/tanh-b1024-fashion-eps2.7"),
                _one("ReLU", "shoe-fit/relu-b1024-fashion-eps2.7"),
            )),
        ),
    ),
    Plot(
        paper="shoe-fit", name="activation-norms", source="figures 2 and 3, summary", kind="dots",
        y="mean L2 norm", measure="activation-norm",
        caption="Norm of the first convolution's activations on test images, after training.",
        panels=(
            Panel("MNIST", (
                _one("ReLU, not private", "shoe-fit/relu-mnist-not-private"),
                _one("ReLU, DP-SGD", "shoe-fit/relu-mnist-eps2.93"),
                _one("tanh, DP-SGD", "shoe-fit/tanh-mnist-eps2.93"),
            )),
        ),
    ),
    Plot(
        paper="shoe-fit", name="transfer", source="tables 3 and 4", kind="sweep", x="ε",
        caption="The last layer trained on CIFAR-10 after public CIFAR-100 (dotted: published).",
        panels=(
            Panel("CIFAR-10", tuple(
                _swept(kind, {
                    e: f"shoe-fit/transfer-{kind}-cifar10-eps{e:g}" for e in (0.32, 1.04, 2.12)
                })
                for kind in ("max-100", "half-rand-50", "min-rand-10")
            )),
        ),
    ),
    Plot(
        paper="shoe-fit", name="meanvar", source="figure 4", kind="curves", x="ε spent",
        caption="He and MeanVar initialisation; MeanVar begins with what its source has spent.",
        panels=(
            Panel("CIFAR-10", (
                _one("MeanVar", "shoe-fit/meanvar-cifar10-eps19.2"),
                _one("He", "shoe-fit/he-cifar10-eps19.2"),
            )),
        ),
    ),
    Plot(
        paper="shoe-fit", name="sgd-adam", source="figure 5", kind="curves", x="ε spent",
        caption="DP-SGD and DP-Adam against the privacy spent.",
        panels=(
            Panel("MNIST", (
                _one("SGD", "shoe-fit/tanh-mnist-eps2.93"),
                _one("Adam", "shoe-fit/adam-mnist-eps2.93"),
            )),
            Panel("Fashion-MNIST", (
                _one("SGD", "shoe-fit/tanh-b256-fashion-eps2.7"),
                _one("Adam", "shoe-fit/adam-b256-fashion-eps2.7"),
            )),
            Panel("CIFAR-10", (
                _one("SGD", "shoe-fit/sgd-cifar10-eps8"),
                _one("Adam", "shoe-fit/adam-cifar10-eps8"),
            )),
        ),
    ),
    Plot(
        paper="optimizer-report", name="curves", source="section 7", kind="curves", x="ε spent",
        caption="ResNet-20 against the privacy spent (diamonds: on the test set at the end).",
        panels=(
            Panel("CIFAR-10", tuple(
                _one(f"budget ε {e}", f"optimizer-report/resnet20-cifar10-eps{e}")
                for e in (3, 5, 8)
            )),
        ),
    ),
    Plot(
        paper="equivariant", name="groups", source="table 4", kind="dots",
        caption="Symmetry groups at epsilon 2 (dots: ours, ticks: seeds, diamonds: published).",
        panels=(
            Panel("CIFAR-10", tuple(
                _one(g.upper(), f"equivariant/eq-resnet9-{g}-cifar10-eps2")
                for g in ("c4", "c8", "c16", "d4", "d8", "d16", "so2-1", "so2-2", "so2-3")
            )),
        ),
    ),
    Plot(
        paper="equivariant", name="width", source="figure 2", kind="sweep", one_change=True,
        x="channels of the first width",
        caption="Accuracy against width, with and without symmetry, at epsilon 8.",
        panels=(
            Panel("CIFAR-10", (
                _swept("Equivariant-ResNet-9 D4", {
                    8.0: f"{_D4}-width8-cifar10-eps8", 16.0: f"{_D4}-cifar10-eps8",
                    32.0: f"{_D4}-width32-cifar10-eps8", 64.0: f"{_D4}-width64-cifar10-eps8",
                }),
                _swept("ResNet-9", {
                    float(n): f"equivariant/resnet9-width{n}-cifar10-eps8" for n in (8, 16, 32, 64)
                }),
            )),
        ),
    ),
    Plot(
        paper="equivariant", name="batch", source="figure 4", kind="sweep", one_change=True,
        x="batch B",
        caption="Accuracy against the batch at epsilon 8.",
        panels=(
            Panel("CIFAR-10", (
                _swept("Equivariant-ResNet-9 D4", {
                    **{
                        float(b): f"{_D4}-b{b}-cifar10-eps8" for b in (256, 512, 1024, 2048, 4096)
                    },
                    8192.0: f"{_D4}-cifar10-eps8",
                }),
                _swept("WRN-16-4", {
                    float(b): f"equivariant/wrn-16-4-b{b}-cifar10-eps8" for b in (256, 1024, 4096)
                }),
            )),
        ),
    ),
    Plot(
        paper="equivariant", name="views", source="figure 5", kind="sweep", one_change=True,
        x="views K",
        caption="Accuracy against augmentation multiplicity at epsilon 8.",
        panels=(
            Panel("CIFAR-10", (
                _swept("Equivariant-ResNet-9 D4", {
                    1.0: f"{_D4}-k1-cifar10-eps8", 2.0: f"{_D4}-k2-cifar10-eps8",
                    4.0: f"{_D4}-cifar10-eps8", 8.0: f"{_D4}-k8-cifar10-eps8",
                    16.0: f"{_D4}-k16-cifar10-eps8", 32.0: f"{_D4}-k32-cifar10-eps8",
                }),
            )),
        ),
    ),
    Plot(
        paper="sfumato", name="curves", source="CIFAR-10 after dead leaves", kind="curves",
        x="ε spent",
        caption="Two networks after dead leaves against the privacy spent "
        "(diamonds: averaged weights on the test set at the end).",
        panels=(
            Panel("Equivariant-ResNet-9 (D4)", tuple(
                _one(f"budget ε {e}", f"sfumato/leaves-cifar10-eps{e}") for e in (1, 2, 3, 8)
            )),
            Panel("WRN-16-4", tuple(
                _one(f"budget ε {e}", f"sfumato/leaves-wrn-16-4-cifar10-eps{e}") for e in (3, 8)
            )),
        ),
    ),
)  # fmt: skip
