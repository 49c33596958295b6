"""The version, alone in its file so that it can be read without importing torch."""

__version__ = "0.3.0"

# The version whose numbers these are. The hash of a run contains it, so that finished runs of earlier versions are
# recognised: it changes only when the answers of a method change.
RESULTS_VERSION = "0.2.0"
