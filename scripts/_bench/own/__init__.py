"""Parts of ``bench_own``: a researcher, other users' jobs, and one run of each arm."""
