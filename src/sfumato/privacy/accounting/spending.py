"""The cost of steps by an accountant, after earlier steps and with a choice among several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sfumato.errors import UserError
from sfumato.privacy.accounting import accountants
from sfumato.privacy.accounting.accountants import ORDERS, AccountantName, Step
from sfumato.privacy.accounting.selection import Selection

_FEW_ORDERS = ORDERS[::4]


@dataclass(frozen=True)
class Spending:
    """The rule by which steps are charged.

    Attributes:
        delta: As in (epsilon, delta).
        accountant: `pld` or `rdp`.
        before: Earlier steps on the same images, which are counted too.
        selection: The choice of the best of several runs of these steps, if there is one.
    """

    delta: float
    accountant: AccountantName
    before: tuple[Step, ...] = ()
    selection: Selection | None = None

    def __post_init__(self) -> None:
        accountants.check_delta_range(self.delta)
        accountants.check_accountant(self.accountant)
        if self.selection and self.accountant != "rdp":
            raise UserError(
                "The choice of the best of several runs is accounted for by RDP alone, not by "
                f"'{self.accountant}'."
            )

    def spent(self, steps: Sequence[Step]) -> float:
        """Epsilon of the earlier steps and these."""
        if self.selection:
            return self.selection.epsilon(steps, delta=self.delta, before=self.before)
        history = [*self.before, *steps]
        return accountants.epsilon(history, delta=self.delta, accountant=self.accountant)

    def quickly(self, steps: Sequence[Step]) -> float:
        """An upper bound of `spent`, quick and a little loose."""
        if self.selection:
            return self._at_few_orders(steps)
        history = [*self.before, *steps]
        return accountants.quick_epsilon(history, delta=self.delta, accountant=self.accountant)

    def bounds(self) -> list[Callable[[Sequence[Step]], float]]:
        """Quicker upper bounds of `spent`, each closer than the one before it."""
        rough = self._at_few_orders
        return [rough] if self.accountant == "rdp" else [rough, self.quickly]

    def _at_few_orders(self, steps: Sequence[Step]) -> float:
        """An upper bound of `spent` by a quarter of the Rényi orders."""
        if self.selection:
            return self.selection.epsilon(
                steps, delta=self.delta, before=self.before, orders=_FEW_ORDERS
            )
        history = [*self.before, *steps]
        return accountants.quick_epsilon(
            history, delta=self.delta, accountant="rdp", orders=_FEW_ORDERS
        )

    def floor(self) -> float:
        """The epsilon below which `bounds` find no amount of noise that is enough."""
        if self.selection is None:
            return 0.0
        return self.selection.floor(self.delta, orders=_FEW_ORDERS)
