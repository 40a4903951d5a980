"""What `ray_jobs.compare` is made of: plan, child processes, terminal, report."""
