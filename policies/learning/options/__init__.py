"""What an update may have besides, all of it off unless it is set."""
