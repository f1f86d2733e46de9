"""What every environment shares: the episode loop, its outcomes, rewards and errors."""
