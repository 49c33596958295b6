"""Pictures and where they come from; nothing here knows a model."""
