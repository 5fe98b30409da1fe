"""What a simulation knows of the values of tensors.

`reading` answers code that asks for a value; `unknown` is the answer where there is none, and the sentence where there
cannot be one.
"""
