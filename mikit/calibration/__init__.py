"""How far the verdicts can be trusted: gates tried on explanations that are known to be right or wrong.

On the planted model the truth is known. On another model the explanation that was written for a feature is compared
with explanations written for other features, which must not pass, and with a random direction's.
"""
