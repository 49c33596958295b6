"""The mathematics and the contract: torch only, no models, no images."""
