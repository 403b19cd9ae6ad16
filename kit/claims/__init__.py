"""Published values against measured ones. Pure: records in, plain data out. Knows nothing of formatting.

`found` takes a claim's number from a run, `judge` says whether the claim holds, `against` compares two runs of the
same scenario, `verify` puts both together with the state of the folder and the exit code.
"""
