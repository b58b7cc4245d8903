"""The learner: packing, DeepSpeed, checkpoints, agreement with rollouts. `k3rl.learner.group` is the driver's handle."""
