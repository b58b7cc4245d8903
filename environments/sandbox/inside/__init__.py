"""What runs inside a container: PID 1 and its parts. Standard library only; copied into the runtime folder."""
