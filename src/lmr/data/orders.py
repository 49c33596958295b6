"""The names of the orders in which a stream gives its images. Imports nothing, so that the command line starts at once.

What each of them does is in ``lmr.data.streams``.
"""

from __future__ import annotations

ORDERS = ("shuffle", "file", "dirichlet", "classes", "bursts", "shift", "haul")
