"""Published results on CIFAR-10 from scratch, for the plot of accuracy against epsilon.

Test accuracies in per cent at delta 1e-5 (validation for SmoothNet). `verified` means read in a
primary source, its code or an independent replication.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A published method.

    Attributes:
        name: The name as cited.
        points: Epsilon and accuracy in per cent.
        prior: Fixed features or synthetic images that it builds on; empty for none.
        verified: Whether all points are verified.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    prior: str = ""
    verified: bool = True


CIFAR10: tuple[Method, ...] = (
    Method("Papernot et al. 2020", ((7.53, 66.2),)),
    Method("Dörmann et al. 2021", ((1.93, 58.6), (4.21, 66.2), (7.42, 70.1))),
    Method("Klause et al. 2022, ScaleResNet-9", ((2.89, 65.6), (7.42, 71.8), (9.88, 73.0))),
    Method("Remerscheid et al. 2022, SmoothNet", ((7.0, 73.5),)),
    Method("Radhakrishna and Hegde 2024, ResNet-20", ((3.0, 62.4),)),
    Method(
        "De et al. 2022, WRN-16-4",
        ((1.0, 56.8), (2.0, 64.9), (3.0, 69.2), (4.0, 71.9), (6.0, 77.0), (8.0, 79.5)),
        verified=False,
    ),
    Method(
        "De et al. 2022, WRN-40-4",
        ((1.0, 56.4), (2.0, 65.9), (3.0, 70.7), (4.0, 73.5), (6.0, 78.8), (8.0, 81.4)),
        verified=False,
    ),
    Method("De et al., run again by others", ((1.0, 56.8), (2.0, 62.9), (4.0, 69.5), (8.0, 78.7))),
    Method("Klause et al. 2022, ScaleWRN-16-4", ((8.0, 82.5),)),
    Method("Hölzl et al. 2023, Equivariant-ResNet-9 D4", ((2.0, 71.86),)),
    Method(
        "ScatterNet + CNN",
        ((1.0, 60.9), (2.0, 67.0), (3.0, 69.3), (4.0, 69.7), (8.0, 72.4)),
        prior="fixed wavelets",
    ),
    Method("DP-RandP", ((1.0, 72.3),), prior="synthetic images"),
)
