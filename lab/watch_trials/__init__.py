"""What a watch notices, how soon, and what it costs: trials of sick and of healthy streams."""
