"""Load and faults: experiments that start the real service, use the real client, and check their aims."""
