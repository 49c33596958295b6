"""What one step of each method costs: time, memory and the share of the machine's arithmetic it reaches."""

from lmr.bench.cost.measure import measure_cost
from lmr.bench.cost.options import add_cost_options, run_cost

__all__ = ["add_cost_options", "measure_cost", "run_cost"]
