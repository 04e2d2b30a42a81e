"""Per-example gradients: the results, the engines that compute them, and their parts.

An engine is handed a batch and returns the gradients of its examples; see
`sfumato.privacy.engines.results`.
"""
