"""Documents about runs: the HTML page, the card, pictures of evaluations and analyses."""
