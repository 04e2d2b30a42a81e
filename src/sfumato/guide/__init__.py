"""A guided start: a look at an image set, and a recipe for it with what to expect.

from sfumato.guide import look, propose, recipe_text

found = look(Data(name="./scans"))
proposal = propose(found.dataset, found.data, epsilon=8, minutes=30, device=torch.device("cpu"))
print(recipe_text(proposal))
"""

from sfumato.guide.proposal import Proposal, propose
from sfumato.guide.recipe_text import recipe_text
from sfumato.guide.search_units import Found, look
from sfumato.recipes.measured import Expectation, expected_accuracy

__all__ = [
    "Expectation",
    "Found",
    "Proposal",
    "expected_accuracy",
    "look",
    "propose",
    "recipe_text",
]
