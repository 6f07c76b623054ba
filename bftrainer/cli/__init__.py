"""The command line: one file per verb, loaded only when that verb is used."""
