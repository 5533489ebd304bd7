"""The read-only web page of a user's pilots and harvesters."""
