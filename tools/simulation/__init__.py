"""The simulator: predicts rate, waits, memory and cost of epochs on other ranks, stores, shards and options."""

from .costs import Costs, RingCosts, StepCosts, StoreCosts, fit_ring
from .measure import MeasuredDataset, measure_costs
from .result import EpochFigures, Simulation
from .setup import DatasetShape, Prices, Setup
from .simulator import simulate, simulate_ranks

__all__ = [
    "Costs",
    "DatasetShape",
    "EpochFigures",
    "MeasuredDataset",
    "Prices",
    "RingCosts",
    "Setup",
    "Simulation",
    "StepCosts",
    "StoreCosts",
    "fit_ring",
    "measure_costs",
    "simulate",
    "simulate_ranks",
]
