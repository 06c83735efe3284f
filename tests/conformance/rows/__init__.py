"""The rows of the table, a module a family; each has `rows()`."""

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
