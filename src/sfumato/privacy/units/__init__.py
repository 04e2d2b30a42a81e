"""Units of privacy with several images: which images are whose, and batches of them."""
