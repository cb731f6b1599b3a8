"""Which thread, process, cgroup, container and pod an event came from.

Takes the ids of threads and the kernel's events about cgroups, and reads /proc. Gives names.
May import model.
"""
