"""`sfumato budget`: which epsilon, how much noise, how many steps, how large a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli.example_count import DATA, examples_of
from sfumato.cli.terminal import Terminal, echo
from sfumato.cli.unit_options import COLUMNS, UNIT, UNIT_PATTERN
from sfumato.errors import UserError

if TYPE_CHECKING:
    from sfumato.privacy.accounting.accountants import AccountantName
    from sfumato.privacy.accounting.selection import Selection


_OPTIONS = {"epsilon": "--epsilon", "noise": "--noise", "steps": "--steps", "batch": "--batch"}
_QUESTIONS = {
    "epsilon": "privacy spent, ε",
    "noise": "noise multiplier, σ",
    "steps": "number of steps",
    "batch": "expected batch",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(budget)


def budget(
    run: Path = typer.Argument(None, help="A run whose ledger answers, with --group."),
    epsilon: float = typer.Option(None, help="Privacy budget."),
    delta: float = typer.Option(
        None, help="Less than 1 / number of training examples; 1e-5 if not given."
    ),
    examples: int = typer.Option(None, help="Number of training examples."),
    data: str = DATA,
    unit: str = UNIT,
    unit_pattern: str = UNIT_PATTERN,
    columns: str = COLUMNS,
    batch: int = typer.Option(None, help="Expected batch."),
    steps: int = typer.Option(None, help="Number of steps."),
    epochs: float = typer.Option(None, help="Passes over the training set, instead of --steps."),
    noise: float = typer.Option(None, help="Noise multiplier."),
    accountant: str = typer.Option(
        None, help="pld (tight, the default) or rdp (as in most papers, and with --tuning-mean)."
    ),
    tuning_mean: float = typer.Option(
        None, help="Mean number of runs of `tune --private`: the budget is for the best of them."
    ),
    tuning_distribution: str = typer.Option(
        None, help="Of that number: logarithmic (the default), geometric or poisson."
    ),
    group: int = typer.Option(
        None, metavar="K", help="Also the epsilon of K images of one person together."
    ),
    plot: Path = typer.Option(None, help="Draw epsilon against steps into this new file."),
    json: bool = typer.Option(False, "--json", help="Print the answer as JSON."),
) -> None:
    """Ask what a privacy budget allows: leave out one of --epsilon, --noise, --steps, --batch.

    For example `sfumato budget --data cifar10 --batch 4096 --steps 875 --epsilon 1` answers with
    the noise. Both accountants are shown; --accountant says whose answer is used further on.
    `sfumato budget RUN --group 5` answers for five images of one person in a run.
    """
    from sfumato.cli import budget_group
    from sfumato.cli.budget_picture import check_new, draw

    if run is not None:
        alone = (epsilon, delta, examples, data, batch, steps, epochs, noise, accountant, plot)
        budget_group.of_run(run, group, (*alone, tuning_mean, tuning_distribution), json=json)
        return
    delta = 1e-5 if delta is None else delta
    selection = _selection(tuning_mean, tuning_distribution, accountant, plot)
    name = _accountant(accountant or ("rdp" if selection else "pld"))
    n = examples_of(examples, data, unit=unit, unit_pattern=unit_pattern, columns=columns)
    counted = _steps(steps, epochs, n, batch)
    given = _Setting(n, delta, epsilon, noise, counted, batch, selection, group)
    question = _question(given, epochs)
    _check(given)
    if plot is not None:
        check_new(plot)
    answers = _answers(given, question, name)
    setting = given.with_(question, answers[name])
    spent = setting.spent()
    if plot is not None:
        title = f"N = {n}, expected batch {setting.batch}, σ = {setting.noise:g}"
        draw(plot, setting.step(), delta=delta, budget=epsilon, title=title)
    if json:
        _print_json(setting, question, name, answers, spent)
    else:
        _print_table(setting, question, name, answers, spent)
        if plot is not None:
            echo(f"Picture: {plot}")


@dataclass(frozen=True)
class _Setting:
    """The numbers of a run; exactly one of the last four is None until it is answered."""

    examples: int
    delta: float
    epsilon: float | None
    noise: float | None
    steps: int | None
    batch: int | None
    selection: Selection | None = None
    group: int | None = None

    def with_(self, question: str, answer: Any) -> _Setting:
        return _Setting(**{**self.__dict__, question: answer})

    def step(self) -> Any:
        from sfumato.privacy.accounting.accountants import Step

        assert self.batch and self.steps and self.noise is not None
        return Step(self.batch / self.examples, self.noise, self.steps)

    def together(self) -> float:
        """Epsilon of the examples of a group together."""
        from sfumato.privacy.accounting.group_privacy import group_epsilon

        assert self.group is not None
        if self.selection:
            return self.selection.group_epsilon([self.step()], delta=self.delta, size=self.group)
        return group_epsilon([self.step()], delta=self.delta, size=self.group)

    def spent(self) -> dict[AccountantName, float]:
        """Epsilon by accountant, of the best of several runs if that is what was asked for."""
        if self.selection is None:
            return self.one_run()
        return {"rdp": self.selection.epsilon([self.step()], delta=self.delta)}

    def one_run(self) -> dict[AccountantName, float]:
        from sfumato.privacy.accounting import accountants

        history = [self.step()]
        return {
            name: accountants.epsilon(history, delta=self.delta, accountant=name)
            for name in accountants.ACCOUNTANTS
        }


def _accountant(name: str) -> AccountantName:
    from sfumato.privacy.accounting.accountants import check_accountant

    check_accountant(name)
    return name  # type: ignore[return-value]


def _selection(
    mean: float | None, distribution: str | None, accountant: str | None, plot: Path | None
) -> Selection | None:
    """The choice among several runs that is asked about, if any."""
    from sfumato.privacy.accounting.selection import Selection

    if mean is None:
        if distribution is not None:
            raise UserError("--tuning-distribution needs --tuning-mean: how many runs, on average?")
        return None
    if accountant == "pld":
        raise UserError(
            "--tuning-mean: the choice among several runs is accounted for by RDP alone. Leave "
            "--accountant out."
        )
    if plot is not None:
        raise UserError("--plot draws the curve of one run: leave it or --tuning-mean out.")
    return Selection(mean, distribution or "logarithmic")  # type: ignore[arg-type]


def _steps(steps: int | None, epochs: float | None, examples: int, batch: int | None) -> int | None:
    if epochs is None:
        return steps
    if steps is not None:
        raise UserError("Give --steps or --epochs, not both.")
    if not 0 < epochs < math.inf:
        raise UserError(f"--epochs must be a number above 0, not {epochs:g}.")
    if batch is None:
        raise UserError(
            "--epochs needs --batch: the number of steps in an epoch is examples / batch. "
            "To ask for the batch, give --steps instead."
        )
    return max(1, round(epochs * examples / batch)) if batch > 0 else 1


def _question(given: _Setting, epochs: float | None) -> str:
    missing = [name for name in _OPTIONS if getattr(given, name) is None]
    if len(missing) == 1:
        return missing[0]
    if not missing:
        steps = "--steps" if epochs is None else "--epochs"
        raise UserError(
            f"There is nothing left to compute: drop one of --epsilon, --noise, {steps}, --batch, "
            "the one to be answered."
        )
    unknown = [_OPTIONS[name] for name in missing]
    few = "one" if len(missing) == 2 else f"{len(missing) - 1}"
    raise UserError(
        f"One of --epsilon, --noise, --steps (or --epochs) and --batch is computed from the three "
        f"others, but {', '.join(unknown[:-1])} and {unknown[-1]} are missing: add {few} of them."
    )


def _check(given: _Setting) -> None:
    from sfumato.cli import budget_group
    from sfumato.privacy.accounting import accountants, budget

    budget.check_delta(given.delta, given.examples)
    if given.epsilon is not None:
        budget.check_epsilon(given.epsilon)
    if given.group is not None:
        budget_group.check(given.group)
    if given.noise is not None:
        accountants.check_noise_multiplier(given.noise)
    if given.steps is not None:
        budget.check_steps(given.steps)
    if given.batch is not None and not 1 <= given.batch <= given.examples:
        raise UserError(
            f"--batch must be between 1 and the number of training examples, {given.examples}, "
            f"not {given.batch}."
        )


def _answers(
    given: _Setting, question: str, chosen: AccountantName
) -> dict[AccountantName, float | int | None]:
    """The answer by each accountant; None where only the one not chosen finds none."""
    from sfumato.privacy.accounting.accountants import ACCOUNTANTS

    if given.selection:
        return {"rdp": _answer(given, question, "rdp")}
    answers: dict[AccountantName, float | int | None] = {}
    for name in ACCOUNTANTS:
        try:
            answers[name] = _answer(given, question, name)
        except UserError:
            if name == chosen:
                raise
            answers[name] = None
    return answers


def _answer(given: _Setting, question: str, name: AccountantName) -> float | int:
    from sfumato.privacy.accounting import budget

    if question == "epsilon":
        return given.spent()[name]
    g: Any = given
    target = {"epsilon": g.epsilon, "delta": g.delta, "accountant": name}
    target |= {"selection": g.selection}
    if question == "batch":
        return budget.batch_for(
            **target, examples=g.examples, steps=g.steps, noise_multiplier=g.noise
        )
    q = g.batch / g.examples
    if question == "steps":
        return budget.steps_for(**target, q=q, noise_multiplier=g.noise)
    return budget.noise_multiplier_for(**target, q=q, steps=g.steps)


def _format(question: str, answer: float | int | None) -> str:
    from sfumato.cli.budget_picture import rounded_up

    if answer is None:
        return "none"
    return rounded_up(answer) if question == "epsilon" else f"{answer:,}".replace(",", " ")


def _print_table(
    setting: _Setting,
    question: str,
    chosen: AccountantName,
    answers: dict[AccountantName, float | int | None],
    spent: dict[AccountantName, float],
) -> None:
    from rich.table import Table

    from sfumato.cli import budget_group
    from sfumato.cli.budget_picture import rounded_up
    from sfumato.privacy.accounting.accountants import RELATION
    from sfumato.privacy.statement import epsilon_warning

    step = setting.step()
    epochs = step.count * step.q
    table = Table(title="Privacy budget", title_justify="left", title_style="bold")
    table.add_column("")
    for name in answers:
        used = " (used)" if name == chosen and question != "epsilon" else ""
        table.add_column(f"{name.upper()}{used}", justify="right")
    table.add_row(
        _QUESTIONS[question],
        *(_format(question, answer) for answer in answers.values()),
        style="bold",
    )
    if question != "epsilon":
        shown = _format(question, answers[chosen])
        label = {"noise": f"σ = {shown}", "steps": f"{shown} steps", "batch": f"batch {shown}"}
        table.add_row(f"ε with {label[question]}", *(rounded_up(spent[name]) for name in answers))
    if setting.selection:
        for name, value in setting.one_run().items():
            table.add_row(f"ε of one run ({name.upper()})", rounded_up(value))
    if setting.group is not None:
        table.add_row(*budget_group.row(setting.group, setting.together(), len(answers)))
    console = Terminal()
    console.print(table)
    console.print(
        f"N = {setting.examples} examples, expected batch {setting.batch} (q = {step.q:.4g}), "
        f"{step.count} steps ({epochs:.4g} epochs), σ = {step.noise_multiplier:g}, "
        f"δ = {setting.delta:g}",
        soft_wrap=True,
    )
    console.print(
        f"Neighbouring data sets: {RELATION}. Each step draws every example independently with "
        "probability q (Poisson sampling).",
        soft_wrap=True,
    )
    if warning := epsilon_warning(spent[chosen]):
        console.print(f"Warning: {warning}", soft_wrap=True)
    if s := setting.selection:
        console.print(
            f"ε is that of releasing the best of {s.mean:g} runs on average ({s.distribution} "
            "distribution) and nothing of the others (Papernot & Steinke, 2022; RDP).",
            soft_wrap=True,
        )


def _print_json(
    setting: _Setting,
    question: str,
    chosen: AccountantName,
    answers: dict[AccountantName, float | int | None],
    spent: dict[AccountantName, float],
) -> None:
    import json

    from sfumato.privacy.accounting.accountants import RELATION

    def finite(values: dict[AccountantName, Any]) -> dict[AccountantName, Any]:
        return {name: None if value == math.inf else value for name, value in values.items()}

    step = setting.step()
    content = {
        "question": question,
        "accountant": chosen,
        "answer": finite(answers),
        "epsilon": finite(spent),
        "delta": setting.delta,
        "examples": setting.examples,
        "batch": setting.batch,
        "q": step.q,
        "steps": step.count,
        "noise_multiplier": step.noise_multiplier,
        "neighbouring": RELATION,
        "sampling": "poisson",
    }
    if setting.selection:
        tuning = {"mean": setting.selection.mean, "distribution": setting.selection.distribution}
        content["tuning"] = {**tuning, "one_run": finite(setting.one_run())}
    if setting.group is not None:
        content["group"] = {str(setting.group): finite({"pld": setting.together()})["pld"]}
    echo(json.dumps(content, indent=2))
