"""Sites and logs on which ``bench_whatif_harm`` asks ``whatif --harm``."""
