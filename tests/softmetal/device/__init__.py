"""torch.device("mps") on a machine without one: CPU kernels over memory that the device owns and counts."""
