"""What a simulation knows of the values of tensors.

`reading` answers code that asks for a value, or says in one sentence why it cannot.
"""
