"""Parts of ``bench_deadline``: traces, studies, forecasts and how good they are."""
