"""Several processes that train one model: a thin layer over `torch.distributed`."""
