"""Many runs as one: plan, processes, report."""
