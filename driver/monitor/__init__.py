"""What is known of the GPUs and of their health, as Snapshots: made here and nowhere else."""
