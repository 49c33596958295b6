"""What one step of each method costs: time, memory and the share of the machine's arithmetic it reaches."""

from lmr.bench.cost.measure import measure_cost

__all__ = ["measure_cost"]
