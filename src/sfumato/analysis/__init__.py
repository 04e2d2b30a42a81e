"""Analyses of a trained classifier: quality, calibration, curvature, activations, sparsity, cost.

`evaluate(probabilities(classifier, data.test), data.test.labels, data.classes)` gives scores;
`analyze(sfumato.open("runs/digits-001"))` gives calibration, curvature, activations, sparsity,
gradients and cost. Each is a function of its own too: see docs/analysis.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato._lazy import lazy

if TYPE_CHECKING:
    from sfumato.analysis.activation_statistics import Activations, Distribution, activations_of
    from sfumato.analysis.calibration import (
        Calibration,
        Scores,
        adaptive_reliability,
        calibrate,
        fit_temperature,
        scores,
    )
    from sfumato.analysis.class_curves import ClassCurves
    from sfumato.analysis.classification import (
        Evaluation,
        Reliability,
        brier_score,
        evaluate,
        evaluate_logits,
        negative_log_likelihood,
        reliability,
        softmax,
    )
    from sfumato.analysis.cost import Cost, cost_of
    from sfumato.analysis.curvature import Hessian, Trace, trace_of
    from sfumato.analysis.gradients import GradientNorms, LayerGradient, gradient_norms
    from sfumato.analysis.inference import (
        Prediction,
        logits,
        predict_arrays,
        predict_files,
        probabilities,
    )
    from sfumato.analysis.intervals import Intervals
    from sfumato.analysis.kept_temperature import keep_temperature
    from sfumato.analysis.membership_inference import Membership, membership
    from sfumato.analysis.overview import Analysis, Effort, analyze
    from sfumato.analysis.run_access import draw_images, mechanism, part_of
    from sfumato.analysis.sparsity import Sparsity, l0_eps, sparsity_of
    from sfumato.analysis.spectrum import (
        Ritz,
        Spectrum,
        exact_spectrum,
        lanczos,
        spectrum_of,
        top_eigenvalues,
    )
    from sfumato.discrimination import (
        Curve,
        RankedScores,
        auroc,
        average_precision,
        log_odds,
        sensitivity_at,
    )

__all__ = [
    "Activations",
    "Analysis",
    "Calibration",
    "ClassCurves",
    "Cost",
    "Curve",
    "Distribution",
    "Effort",
    "Evaluation",
    "GradientNorms",
    "Hessian",
    "Intervals",
    "LayerGradient",
    "Membership",
    "Prediction",
    "RankedScores",
    "Reliability",
    "Ritz",
    "Scores",
    "Sparsity",
    "Spectrum",
    "Trace",
    "activations_of",
    "adaptive_reliability",
    "analyze",
    "auroc",
    "average_precision",
    "brier_score",
    "calibrate",
    "cost_of",
    "draw_images",
    "evaluate",
    "evaluate_logits",
    "exact_spectrum",
    "fit_temperature",
    "gradient_norms",
    "keep_temperature",
    "l0_eps",
    "lanczos",
    "log_odds",
    "logits",
    "mechanism",
    "membership",
    "negative_log_likelihood",
    "part_of",
    "predict_arrays",
    "predict_files",
    "probabilities",
    "reliability",
    "scores",
    "sensitivity_at",
    "softmax",
    "sparsity_of",
    "spectrum_of",
    "top_eigenvalues",
    "trace_of",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "activation_statistics": ("Activations", "Distribution", "activations_of"),
        "calibration": (
            "Calibration", "Scores", "adaptive_reliability", "calibrate", "fit_temperature",
            "scores",
        ),
        "class_curves": ("ClassCurves",),
        "classification": (
            "Evaluation", "Reliability", "brier_score", "evaluate", "evaluate_logits",
            "negative_log_likelihood", "reliability", "softmax",
        ),
        "cost": ("Cost", "cost_of"),
        "curvature": ("Hessian", "Trace", "trace_of"),
        ".discrimination": (
            "Curve", "RankedScores", "auroc", "average_precision", "log_odds",
            "sensitivity_at",
        ),
        "gradients": ("GradientNorms", "LayerGradient", "gradient_norms"),
        "inference": (
            "Prediction", "logits", "predict_arrays", "predict_files", "probabilities",
        ),
        "intervals": ("Intervals",),
        "kept_temperature": ("keep_temperature",),
        "membership_inference": ("Membership", "membership"),
        "overview": ("Analysis", "Effort", "analyze"),
        "run_access": ("draw_images", "mechanism", "part_of"),
        "sparsity": ("Sparsity", "l0_eps", "sparsity_of"),
        "spectrum": (
            "Ritz", "Spectrum", "exact_spectrum", "lanczos", "spectrum_of", "top_eigenvalues",
        ),
    },
)  # fmt: skip
