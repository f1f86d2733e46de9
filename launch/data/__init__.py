"""Task files: making, converting and validating them."""
