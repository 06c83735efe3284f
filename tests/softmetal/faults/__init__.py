"""What stock PyTorch does wrong on MPS, by version: each fault an object that can be switched on alone."""
from .catalogue import FAULTS, VERSIONS, Fault, select, switch

__all__ = ["FAULTS", "VERSIONS", "Fault", "select", "switch"]
