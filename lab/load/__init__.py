"""Load and faults: experiments that start the real service, use the real client, and say which aims were met."""
