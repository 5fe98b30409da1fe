"""A value that a simulation does not have, and the one clear sentence where training code needs it."""

import math


class DataDependentError(RuntimeError):
    """Training code asked a simulation for a value."""

    def __init__(self, what: str):
        super().__init__(
            f"train {what}; a simulation has no values. Decide from shapes, step numbers or settings instead, or run "
            "this on a real card (CARD=cuda).")


class Unknown(float):
    """The value of a tensor in a simulation: prints as nan, counts on as nan, and cannot be compared."""

    __slots__ = ()

    def __new__(cls):
        return super().__new__(cls, math.nan)

    def __repr__(self):
        return "nan"

    __str__ = __repr__

    def __format__(self, spec):
        try:
            return super().__format__(spec)
        except ValueError:  # "d": the tensor held whole numbers
            return "nan"

    def _unknown(self, *others):
        return Unknown()

    def _branch(self, *others):
        raise DataDependentError("branches on the value of a tensor")

    def _whole(self):
        raise DataDependentError("makes a whole number from the value of a tensor")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _unknown
    __neg__ = __pos__ = __abs__ = __round__ = _unknown
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _branch
    __int__ = __index__ = __trunc__ = __floor__ = __ceil__ = _whole
    __hash__ = float.__hash__
