"""Units of privacy with several images: which these are, and their loss."""
