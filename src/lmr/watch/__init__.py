"""The watch: label-free signals of the health of streams, actions on alarms, and snapshots to return to."""
