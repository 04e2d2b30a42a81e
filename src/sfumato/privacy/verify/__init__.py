"""`verify`: the checks of `sfumato verify` on one model, with a report."""
