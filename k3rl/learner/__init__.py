"""The learner: packing, DeepSpeed, checkpoints, agreement. `k3rl.learner.group` is the driver's handle."""
