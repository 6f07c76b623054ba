"""AdaptDL's dedicated cluster: 16 nodes of 4 GPUs, measured networks, workloads of 80 or 160 jobs.

Source: the simulator of Qiao et al., "Pollux" (OSDI'21), github.com/petuum/adaptdl, branch
osdi21-artifact. Its data are read from ``BFTRAINER_DATA/adaptdl-osdi21``: traces/ (throughput by
placement, statistical efficiency by batch), workloads/ and workloads-0.5/ (jobs), published/ (the
completion times it found). A node of the decision is a GPU here. Policies are asked as the daemon
asks them; its Tiresias and Optimus are ours, to the last digit.
"""
