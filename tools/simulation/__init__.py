"""The simulator: predicts rate, waits, memory and cost of epochs on other ranks, stores, shards and options."""

from ringfeed.tools.measure.costs import Costs, RingCosts, StepCosts, StoreCosts, fit_ring
from ringfeed.tools.measure.dataset_shape import DatasetShape
from ringfeed.tools.measure.loader_costs import MeasuredDataset, measure_costs
from ringfeed.tools.predict.setup import Prices, Setup
from ringfeed.tools.predict.simulation import EpochFigures, Simulation
from ringfeed.tools.predict.simulator import simulate, simulate_ranks

__all__ = [
    "Costs", "DatasetShape", "EpochFigures", "MeasuredDataset", "Prices", "RingCosts", "Setup", "Simulation",
    "StepCosts", "StoreCosts", "fit_ring", "measure_costs", "simulate", "simulate_ranks",
]  # fmt: skip
