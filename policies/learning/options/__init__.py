"""Options of an update; each is off unless a setting turns it on."""
