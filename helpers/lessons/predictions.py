"""Answers to predictions and questions: each says what is wrong and, where it can tell, why.

Nothing raises for a reader's answer. `...` or None means unanswered. The printed text is the same on every machine.
"""

import numbers

from helpers.units import GiB, KiB, MiB

# What a factor between an answer and the right number usually means. Exact to a percent, see `diagnosis`.
FACTORS = (
    (GiB, "That is {unit} counted in bytes: divide by 2**30."),
    (MiB, "That is a factor of 2**20: MiB for bytes, or KiB for GiB. Divide by 2**20."),
    (KiB, "That is MiB: divide by 1024."),
    (1000, "That is a factor of 1000: check MB against GB, or thousands."),
    (GiB / 1e9, "That is GB (10**9 bytes). A GiB is 2**30 bytes, 7 % more: divide the bytes by 2**30."),
    (20, "That is 20 times as much: is batch × pages (4 × 5) counted twice?"),
    (8, "That is 8 times as much: bits where bytes are meant?"),
    (5, "That is 5 times as much: are the pages of a document counted twice?"),
    (4, "That is 4 times as much: are the 4 bytes of a float32 counted twice, or is a batch of 4?"),
    (2, "That is twice as much: float32 has 4 bytes, float16 has 2; or something is counted twice."),
)
INVERSE = (
    (GiB, "That is divided by 2**30 once too often."),
    (MiB, "That is a factor of 2**20 too small."),
    (KiB, "That is a factor of 1024 too small: a unit too far."),
    (1000, "That is a factor of 1000 too small."),
    (GiB / 1e9, "That is 7 % less, the gap between GiB (2**30 bytes) and GB (10**9 bytes)."),
    (20, "That is a 20th: batch 4 is 4 documents × 5 pages = 20 sequences."),
    (8, "That is an eighth: bytes where bits are meant, or Adam's 8 bytes a parameter left out."),
    (5, "That is a fifth: a document has 5 pages."),
    (4, "That is a quarter: a float32 has 4 bytes."),
    (2, "That is half: float32 has 4 bytes, float16 has 2; or one of two equal parts is left out."),
)


def predict(guess, measured: float, unit: str = "GiB", hints=()) -> None:
    """Print a guess beside the measurement, and the gap in words. No guess is wrong: it is made before measuring.

    hints: {value: sentence} or (value, sentence) pairs: what a guess near that value overlooks.
    """
    if unanswered(guess):
        print(f"Measured: {shown(measured, unit)}. You have not guessed: type a number for it, then run again.")
        return
    problem = not_a_number(guess, unit)
    if problem:
        print(f"{problem} Measured: {shown(measured, unit)}.")
        return
    gap = guess - measured
    print(f"Your guess: {shown(guess, unit)}. Measured: {shown(measured, unit)}.")
    if measured and abs(gap) <= 0.05 * abs(measured):
        print("That is within 5 %: a good model of what happens.")
        return
    share = f" ({100 * abs(gap / measured):.0f} % of it)" if measured else ""
    print(f"You are {shown(abs(gap), unit)} too {'high' if gap > 0 else 'low'}{share}.")
    reason = hinted(guess, hints) or diagnosis(guess, measured, unit)
    if reason:
        print(reason)


def number(answer, right: float, within: float = 0.02, unit: str = "GiB", hints=(), why: str = "") -> None:
    """Print whether a number is right, else what probably went wrong.

    within: allowed relative error; for a right answer of 0 it is absolute. hints: {wrong value: sentence} or pairs,
    tried before the usual suspects (GB for GiB, a forgotten factor). why: one sentence for the right answer.
    """
    if unanswered(answer):
        print(f"Replace the ... with a number{f' in {unit}' if unit else ''}, then run this cell.")
        return
    problem = not_a_number(answer, unit)
    if problem:
        print(problem)
        return
    if abs(answer - right) <= within * (abs(right) or 1):
        print(f"Right: {shown(right, unit)}. {why}".strip())
        return
    direction = "high" if answer > right else "low"
    reason = (hinted(answer, hints) or diagnosis(answer, right, unit)
              or "Take it apart: what is stored, how often, how large.")
    print(f"Not yet: {shown(answer, unit)} is too {direction}. {reason}")


def choice(answer, right: str, why: dict[str, str]) -> None:
    """Print whether the letter is right, and why. why: {letter: one sentence}, for the wrong ones as well.

    Raises ValueError for the author's mistake: the right letter has no sentence.
    """
    if right not in why:
        raise ValueError(f"The right answer {right!r} has no sentence in why.")
    letters = ", ".join(repr(letter) for letter in why)
    if unanswered(answer):
        print(f"Replace the ... with one of {letters}, then run this cell.")
        return
    given = answer.strip().strip("().").lower() if isinstance(answer, str) else answer
    known = {letter.lower(): letter for letter in why}
    if not isinstance(given, str) or given not in known:
        print(f"{answer!r} is not one of the answers. Choose one of {letters}.")
        return
    print(f"{'Right' if known[given] == right else 'Not yet'}: {why[known[given]]}")


def unanswered(answer) -> bool:
    return answer is ... or answer is None


def not_a_number(answer, unit: str) -> str:
    """One sentence for what cannot be an amount, else an empty text."""
    if isinstance(answer, str):
        return f"{answer!r} is text. Type a number without quotation marks and without a unit, such as 4.5."
    if isinstance(answer, bool) or not isinstance(answer, numbers.Real):
        return f"{type(answer).__name__} is no number. Type one such as 4.5."
    if answer != answer or abs(answer) == float("inf"):
        return f"{answer} is no amount. Type a finite number."
    if answer < 0:
        return f"{answer} is negative, and an amount{f' in {unit}' if unit else ''} is not."
    if unit == "GiB" and answer > 1e6:
        return f"{answer:,} GiB is more than any machine has. If these are bytes, divide by 2**30 (GiB)."
    return ""


def shown(value: float, unit: str) -> str:
    """A number as the series prints it: GiB with two decimals, others as whole numbers or four digits."""
    if unit in ("GiB", "MiB"):
        text = f"{value:.2f}"
    else:
        text = f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"
    return f"{text} {unit}".strip()


def hinted(answer: float, hints) -> str:
    """The author's sentence for the value nearest the answer, if one is within a percent."""
    pairs = hints.items() if isinstance(hints, dict) else hints
    near = [(abs(answer - value), sentence) for value, sentence in pairs if abs(answer - value) <= 0.01 * abs(value)]
    return min(near)[1] if near else ""


def diagnosis(answer: float, right: float, unit: str) -> str:
    """What the ratio of answer and right number usually means; an empty text where it means nothing."""
    if not answer or not right:
        return ""
    for ratio, table in ((answer / right, FACTORS), (right / answer, INVERSE)):
        for factor, sentence in table:
            if abs(ratio / factor - 1) <= 0.01:
                return sentence.format(unit=unit or "it")
    return ""
