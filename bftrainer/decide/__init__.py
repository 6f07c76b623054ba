"""DecisionInput -> Plan. Pure; daemon and simulator run the same code."""
