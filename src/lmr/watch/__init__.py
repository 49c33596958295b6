"""The watch: label-free signals of health, a ladder of actions, and snapshots to return to."""
