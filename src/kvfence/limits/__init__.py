"""What each worker can take, where a pair disagrees about it, and how to mend that."""
