"""What ``doctor`` and ``check --live`` say of this kernel and of this process."""
