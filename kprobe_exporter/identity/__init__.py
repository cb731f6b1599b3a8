"""Who a thread is: its name and its process."""
