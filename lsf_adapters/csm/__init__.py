"""LSF on machines with IBM's Cluster System Management, such as Summit: idle nodes and pilots.

A batch script runs on a launch node there, and ``jsrun`` starts programs on the compute nodes.
``python -m lsf_adapters.csm`` records idle nodes as section 2.1 of the BFTrainer paper did;
``placement`` and ``compound`` are the adapter's, with ``launch: csm``. All of this is written from
public documentation and outputs, and was tried on a stand-in only.
"""
