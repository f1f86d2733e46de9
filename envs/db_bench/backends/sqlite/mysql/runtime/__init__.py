"""What translated statements call while SQLite runs them."""
